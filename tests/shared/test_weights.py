"""The manifest of a weight update."""

from typing import Any

import pytest
from pydantic import ValidationError

from shared.weights import WeightManifest, sha256


def manifest(**changes: Any) -> WeightManifest:
    fields: dict[str, Any] = {
        "version": 1,
        "learner_epoch": 1,
        "tensors": [{"name": "a", "dtype": "float32", "shape": [2, 3], "part": 0}],
        "parts": [{"nbytes": 24, "sha256": sha256([b"x"])}],
    }
    return WeightManifest.model_validate(fields | changes)


def test_the_digest_changes_with_any_tensor_or_part() -> None:
    digests = {
        manifest().digest,
        manifest(tensors=[{"name": "b", "dtype": "float32", "shape": [2, 3], "part": 0}]).digest,
        manifest(tensors=[{"name": "a", "dtype": "bfloat16", "shape": [2, 3], "part": 0}]).digest,
        manifest(tensors=[{"name": "a", "dtype": "float32", "shape": [3, 2], "part": 0}]).digest,
        manifest(parts=[{"nbytes": 24, "sha256": sha256([b"y"])}]).digest,
    }
    assert len(digests) == 5
    assert manifest().digest == manifest(version=2).digest, "the version is not part of the weights"


def test_the_size_of_a_tensor_follows_from_shape_and_type() -> None:
    assert manifest().tensors[0].nbytes == 24


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensors": []}, "at least 1 item"),
        ({"tensors": [{"name": "a", "dtype": "float32", "shape": [1], "part": 1}]}, "there are 1 parts"),
        (
            {"tensors": [{"name": "a", "dtype": "float32", "shape": [1], "part": 0}] * 2},
            "'a' is listed twice",
        ),
        ({"tensors": [{"name": "a", "dtype": "int8", "shape": [1], "part": 0}]}, "float32"),
        ({"tensors": [{"name": "a", "dtype": "float32", "shape": [-1], "part": 0}]}, "negative extent"),
        ({"parts": [{"nbytes": 1, "sha256": "xyz"}]}, "pattern"),
        ({"surprise": 1}, "Extra inputs"),
        ({"version": -1}, "greater than or equal"),
    ],
)
def test_an_inconsistent_manifest_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        manifest(**changes)


def test_a_digest_does_not_depend_on_how_the_bytes_are_cut() -> None:
    assert sha256([b"ab", b"c"]) == sha256([b"abc"])
