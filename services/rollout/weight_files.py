"""What safetensors files hold, by their headers alone, and whether an update fits the model."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from shared.vocabulary import vocabulary_digest
from shared.weights import WeightManifest

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_HEADER_ROOM = 4096
_HEADER_ROOM_PER_TENSOR = 1024
TIED_HEAD = "lm_head.weight"

TensorList = dict[str, tuple[str, tuple[int, ...]]]
"""Name to element type and shape."""


class BadUpdate(ValueError):
    """An update that does not fit the model or its own manifest."""


def read_headers(files: Iterable[Path]) -> TensorList:
    """The tensors in safetensors files.

    Raises:
    BadUpdate: a file is not valid safetensors.
    """
    found: TensorList = {}
    for path in files:
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    view = file.get_slice(name)
                    dtype = view.get_dtype()
                    found[name] = (_DTYPES.get(dtype, dtype), tuple(view.get_shape()))
        except SafetensorError as error:
            raise BadUpdate(f"{path.name} is not valid safetensors: {error}") from error
    return found


def model_files(folder: Path) -> list[Path]:
    """The safetensors files of a Hugging Face model folder.

    Raises:
    ValueError: there is no such model; the message says what is missing.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"[model] path {folder} is not a Hugging Face model folder: it has no config.json")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"[model] path {folder} has no *.safetensors file; save the model as safetensors")
    return files


class ModelShape:
    """The names and shapes that a full update must bring."""

    def __init__(self, folder: Path) -> None:
        self.files = model_files(folder)
        self._folder = folder
        self._tokenizer = vocabulary_digest(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._shapes = {name: shape for name, (_, shape) in read_headers(self.files).items()}
        # A tied head is the embedding under a second name: an update may name it or not.
        tied = config.get("tie_word_embeddings", TIED_HEAD not in self._shapes)
        self._optional = {TIED_HEAD} if tied else set()

    def check(self, manifest: WeightManifest) -> None:
        """Raises:
        BadUpdate: names, shapes or the meaning of token ids differ from the model's.
        """
        if manifest.tokenizer and self._tokenizer not in (None, manifest.tokenizer):
            raise BadUpdate(
                f"the learner's tokenizer has other tokens than the one in {self._folder}: "
                "give all services the same [model] path, or copies of one model"
            )
        shapes = {tensor.name: tuple(tensor.shape) for tensor in manifest.tensors}
        missing = sorted(self._shapes.keys() - shapes.keys() - self._optional)
        unknown = sorted(shapes.keys() - self._shapes.keys() - self._optional)
        if missing or unknown:
            raise BadUpdate(f"a full update must bring the model's own tensors: {_list('missing', missing)}"
                            f"{_list('unknown', unknown)}")  # fmt: skip
        for name, shape in shapes.items():
            own = self._shapes.get(name, shape)
            if shape != own:
                raise BadUpdate(f"tensor {name!r} has the shape {list(shape)}, the model's has {list(own)}")


def part_limits(manifest: WeightManifest) -> list[int]:
    """The most bytes that each part's tensors can need as safetensors."""
    limits = [_HEADER_ROOM] * len(manifest.parts)
    for tensor in manifest.tensors:
        limits[tensor.part] += tensor.nbytes + _HEADER_ROOM_PER_TENSOR
    return limits


def check_part(path: Path, manifest: WeightManifest, part: int) -> None:
    """Raises:
    BadUpdate: the file does not hold exactly the tensors that the manifest puts into this part.
    """
    found: Mapping[str, tuple[str, tuple[int, ...]]] = read_headers([path])
    promised = {t.name: (t.dtype, tuple(t.shape)) for t in manifest.tensors if t.part == part}
    if found != promised:
        either = found.keys() | promised.keys()
        names = sorted(name for name in either if found.get(name) != promised.get(name))
        raise BadUpdate(f"part {part} does not hold what its manifest says: {_list('differing', names)}")


def _list(word: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{word} {', '.join(names[:5])}{more}. "
