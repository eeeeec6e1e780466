"""The ranks of the learner: joining them, what they say to each other, and models sharded over them (FSDP2).

Everything here works the same with one rank, where nothing is sent and nothing is sharded.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

# Ranks wait in a collective while rank 0 waits for rollouts, which may take as long as an outage does. A rank
# that dies is noticed by torchrun, not by this limit.
_PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class World:
    """This process's place among the ranks."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None
    """None with one rank."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over the ranks, in place."""
        if self.mesh is not None:
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its maximum over the ranks, in place."""
        if self.mesh is not None:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """What rank 0 passes, on every rank. The others pass None.

        Raises:
        RuntimeError: on all ranks, if one of them has received anything else.
        """
        assert (data is not None) == self.is_main, "rank 0, and only rank 0, has bytes to send"
        if self.mesh is None:
            assert data is not None
            return data
        header = torch.tensor([len(data or b""), _digest(data or b"")], device=self.device)
        dist.broadcast(header, src=0)
        size, digest = header.tolist()
        buffer = torch.empty(size, dtype=torch.uint8)
        if data:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        buffer = buffer.to(self.device)
        dist.broadcast(buffer, src=0)
        received = buffer.cpu().numpy().tobytes()
        differs = torch.tensor(float(_digest(received) != digest), device=self.device)
        if self.all_reduce_max(differs):
            raise RuntimeError(f"the ranks do not agree on {size} bytes that rank 0 sent to all of them")
        return received

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.mesh is not None:
            dist.barrier()

    def leave(self) -> None:
        """Take the process group down. The last thing a rank does."""
        if self.mesh is not None:
            dist.destroy_process_group()


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest())


def join_world() -> World:
    """Join the ranks that torchrun started (gloo on CPU, NCCL on GPU); without torchrun, be the only one."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if size == 1:
        return World(rank, size, device, mesh=None)
    if device.type == "cuda":
        dist.init_process_group("nccl", timeout=_PATIENCE, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=_PATIENCE)
    return World(rank, size, device, init_device_mesh(device.type, (size,)))


def shard(model: nn.Module, world: World, smallest_block: int = 1_000_000) -> None:
    """Move a model to this rank's device and, with more than one rank, shard it: each block, then the rest.

    Gradients are then averaged over the ranks, so a loss that is a share of a global mean must be multiplied
    by the number of ranks.

    Args:
        smallest_block: parameters below which a block is sharded with the rest of the model, since gathering
            it by itself would take longer than computing it.
    """
    model.to(world.device)
    if world.mesh is None:
        return
    for block in blocks(model):
        if sum(parameter.numel() for parameter in block.parameters()) >= smallest_block:
            fully_shard(block, mesh=world.mesh)
    fully_shard(model, mesh=world.mesh)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a Hugging Face model, which it names as not to be split."""
    names: set[str] = set()
    for module in model.modules():
        names |= set(getattr(module, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def synchronise_gradients(model: nn.Module, now: bool) -> None:
    """Say whether the next backward pass is the last of a step, after which gradients go to their ranks."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """The whole model on rank 0's CPU, by parameter name; empty on other ranks. Every rank must call it.

    Weights that are tied appear once, under their first name.
    """
    reshard(model)
    return _gather(_named_tensors(model))


def load_full_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Put back what `full_state` gave. Every rank passes the whole state.

    Raises:
        ValueError: names or shapes differ from the model's.
    """
    reshard(model)
    _assign(_named_tensors(model), state)


@torch.no_grad()
def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Give a model the values of another that is sharded alike, each rank its part."""
    reshard(source)
    reshard(target)
    own = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        parameter.copy_(own[name])


def full_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors on rank 0's CPU, named `<parameter>/<key>`; empty on other ranks.

    Empty too before the first step. Every rank must call it.
    """
    reshard(model)
    return _gather(_named_optimizer_tensors(model, optimizer))


def load_full_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Tensor]
) -> None:
    """Put back what `full_optimizer_state` gave. Every rank passes the whole state.

    Raises:
        ValueError: a name belongs to no parameter of the model.
    """
    reshard(model)
    parameters = dict(model.named_parameters())
    for name, value in state.items():
        parameter_name, _, key = name.rpartition("/")
        if parameter_name not in parameters:
            raise ValueError(f"optimizer state for {parameter_name!r}, which the model does not have")
        parameter = parameters[parameter_name]
        # Counters such as AdamW's step stay whole on every rank; moments are sharded like their parameter.
        sharded = value.shape == parameter.shape
        own = _like(value, parameter) if sharded else value.to(parameter.device, copy=True)
        optimizer.state[parameter][key] = own


def reshard(model: nn.Module) -> None:
    """Put the shards back in place: a forward pass without a backward one leaves whole copies there."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _named_tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from model.named_parameters()
    persistent = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in persistent)


def _named_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterable[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", value


def _gather(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Unshard one tensor at a time, so that no rank but 0 ever holds the whole."""
    main = not dist.is_initialized() or dist.get_rank() == 0
    gathered: dict[str, Tensor] = {}
    for name, tensor in tensors:
        whole = tensor.detach()
        if isinstance(whole, DTensor):
            whole = whole.full_tensor()
        if main:
            gathered[name] = whole.to("cpu", copy=True)
    return gathered


@torch.no_grad()
def _assign(targets: Iterable[tuple[str, Tensor]], state: dict[str, Tensor]) -> None:
    own = dict(targets)
    if own.keys() != state.keys():
        raise ValueError(
            f"the state does not fit the model, it differs in {sorted(own.keys() ^ state.keys())[:5]}"
        )
    for name, target in own.items():
        if target.shape != state[name].shape:
            raise ValueError(
                f"{name} has shape {tuple(state[name].shape)}, the model's is {tuple(target.shape)}"
            )
        target.copy_(_like(state[name], target))


def _like(whole: Tensor, target: Tensor) -> Tensor:
    """A full tensor in a target's type and place: this rank's shard of it where the target is sharded."""
    whole = whole.to(target.device, target.dtype, copy=True)
    if isinstance(target, DTensor):
        return distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
    return whole
