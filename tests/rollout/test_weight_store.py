"""Which weights a server says that it serves, and what it keeps of them."""

import asyncio
from pathlib import Path

import pytest

from services.rollout.engine import ModelBroken, UpdateFailed
from services.rollout.weight_folder import WeightFolder
from services.rollout.weight_store import Conflict
from tests.rollout.scripted import Room
from tests.rollout.server import make_update
from tests.rollout.tiny_model import tensors_of, varied


def test_only_an_update_that_names_what_it_replaces_may_be_no_newer(room: Room) -> None:
    other = varied(room.model, seed=9)
    served, _ = make_update(tensors_of(room.model), 3)

    async def body() -> None:
        await room.push(3)
        for version in (2, 3):
            for replaces in (None, "of something else"):
                with pytest.raises(Conflict, match="superseded"):
                    await room.push(version, of=other, replaces=replaces)
        assert (room.weights.version, room.weights.divergences) == (3, 0)
        await room.push(2, of=other, replaces=served.digest)
        assert (room.weights.version, room.weights.divergences) == (2, 1)

    asyncio.run(body())


def test_a_failed_update_keeps_the_old_version_and_a_broken_model_serves_none(room: Room) -> None:
    async def body() -> None:
        await room.push(0)
        room.engine.update_failure = UpdateFailed("bad tensor")
        with pytest.raises(UpdateFailed):
            await room.push(1)
        assert (room.weights.version, room.weights.status.state) == (0, "serving")
        room.engine.update_failure = ModelBroken("worse")
        with pytest.raises(ModelBroken):
            await room.push(2)
        assert (room.weights.version, room.weights.status.state) == (None, "broken")
        room.engine.update_failure = None
        await room.push(3)
        assert (room.weights.version, room.weights.status.state) == (3, "serving")

    asyncio.run(body())


def test_the_status_tells_the_learner_epoch_of_the_served_weights_not_of_arriving_ones(room: Room) -> None:
    def served() -> tuple[int | None, int | None]:
        return room.weights.status.version, room.weights.status.learner_epoch

    async def body() -> None:
        assert served() == (None, None)
        await room.push(4, epoch=1)
        manifest, _ = make_update(tensors_of(room.model), 2, epoch=2)
        await room.weights.open(manifest)
        assert served() == (4, 1)
        with pytest.raises(Conflict, match="epoch 2 has taken the run"):
            await room.push(5, epoch=1)
        await room.push(2, epoch=2)
        assert served() == (2, 2)

    asyncio.run(body())


def test_the_folder_of_a_dead_process_is_removed_and_that_of_a_live_one_kept(tmp_path: Path) -> None:
    left_over = tmp_path / "rollstream-weights-dead"
    left_over.mkdir()
    (left_over / "owner.lock").touch()
    live = WeightFolder(tmp_path)
    other = WeightFolder(tmp_path)
    assert live.path.is_dir() and other.path.is_dir() and not left_over.exists()
    live.close()
    other.close()
    assert not list(tmp_path.iterdir())
