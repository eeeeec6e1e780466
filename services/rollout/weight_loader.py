"""Loads weights inside vLLM's worker processes. vLLM mixes `WeightLoader` into its worker class, by name
(`worker_extension_cls`), so that it works in a plain checkout without an installed plug-in.

Importing this module in a child process also ties that process to its parent's life.
"""

import multiprocessing
import os
import threading
from contextlib import ExitStack
from typing import Any

from safetensors import safe_open
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload


def _die_with_parent() -> None:
    """vLLM's engine process outlives a service that was killed, with the model in its memory."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def wait_and_die() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=wait_and_die, name="die-with-parent", daemon=True).start()


_die_with_parent()


class WeightLoader:
    """Mixed into `vllm.v1.worker.gpu_worker.Worker`, also on CPU; called by `collective_rpc`."""

    model_runner: Any
    vllm_config: Any

    def load_safetensors(self, files: list[str]) -> None:
        """Replace all weights by those in `files`, in Hugging Face names and shapes.

        If it fails after it has touched the model, the model is mixed: load a whole set again.
        """
        with ExitStack() as stack:
            # All files are opened before anything changes: a missing or damaged one does no harm.
            opened = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
            tensors = ((name, file.get_tensor(name)) for file in opened for name in file.keys())  # noqa: SIM118
            model = self.model_runner.get_model()
            with set_current_vllm_config(self.vllm_config):
                try:
                    self.model_runner.reload_weights(weights_iterator=tensors)
                except BaseException:
                    # Put every layer's storage back, so that another load finds a model and not its husk.
                    finalize_layerwise_reload(model, self.vllm_config.model_config)
                    raise
                _repack_tied_heads(model, self.vllm_config.model_config.hf_text_config)


def _repack_tied_heads(model: Any, config: Any) -> None:
    """On CPU a head keeps a packed copy of its weights for its matrix kernel. A tied head is not in the
    update, so reloading leaves that copy as it was; on GPU there is none and this does nothing."""
    if getattr(config, "tie_word_embeddings", False):
        for module in model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
