"""Rows of a dataset, wherever it lies: a file, a directory, or the Hugging Face hub.

JSONL, JSON and CSV need no library. Parquet and Arrow files are read by pyarrow; saved directories and hub
datasets by `datasets`. Both come with the extra `rollstream[data]`.
"""

import csv
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from services.learner.config.data import DatasetConfig

Located = tuple[str, Any]
"""Where a row lies, for messages, and the row."""


def read_rows(source: DatasetConfig) -> Iterator[Located]:
    """The rows in their order, the first `limit` of them.

    Raises:
    ValueError: what cannot be read, where, and what to do.
    """
    try:
        yield from islice(_open(source), source.limit)
    except ImportError as error:
        raise ValueError(f"{source.place} needs {error.name}: pip install 'rollstream[data]'") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{source.place} cannot be read: {error}") from error


def _open(source: DatasetConfig) -> Iterator[Located]:
    if source.path is None or source.path.is_dir():
        return _numbered(_library_rows(source))
    if not source.path.exists():
        raise ValueError(
            f"{source.place} cannot be read: there is no such file. For a dataset of the Hugging Face hub "
            "write hub instead of path"
        )
    if source.split or source.subset:
        raise ValueError(f"{source.place} is a file; split and subset are for directories and hub datasets")
    reader = READERS.get(source.path.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{source.place} cannot be read: {source.path.suffix!r} is none of {', '.join(READERS)}"
        )
    return reader(source.path)


def _numbered(rows: Iterator[Any]) -> Iterator[Located]:
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))


def _jsonl(path: Path) -> Iterator[Located]:
    # newline="\n": nothing else ends a line. utf-8-sig: a byte order mark is not part of the first row.
    with path.open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"prompt file {path}, line {number}: {error}") from error
            yield f"line {number}", row


def _json(path: Path) -> Iterator[Located]:
    """A list of rows, an object that holds one as `data`, or, as many a .json file really is, JSONL."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return _jsonl(path)
        raise ValueError(f"prompt file {path}: {error}") from error
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise ValueError(f"prompt file {path} must hold a list of rows, or an object with it as 'data'")
    return _numbered(iter(rows))


def _csv(path: Path) -> Iterator[Located]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        header = next(reader, [])
        for cells in reader:
            where = f"line {reader.line_num}"  # the last one of a row whose cells hold line breaks
            if len(cells) != len(header):
                raise ValueError(
                    f"prompt file {path}, {where}: {len(cells)} cells under {len(header)} columns"
                )
            yield where, dict(zip(header, cells, strict=True))


def _parquet(path: Path) -> Iterator[Located]:
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield from _numbered(row for batch in file.iter_batches() for row in batch.to_pylist())
    except ArrowException as error:
        raise ValueError(f"prompt file {path} cannot be read: {error}") from error


def _arrow(path: Path) -> Iterator[Located]:
    """The file format begins with a magic word; what the `datasets` library keeps is the stream format."""
    from pyarrow import ArrowException, ipc

    try:
        with path.open("rb") as file:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            with ipc.open_file(file) if is_file else ipc.open_stream(file) as reader:
                table = reader.read_all()
    except ArrowException as error:
        raise ValueError(f"prompt file {path} cannot be read: {error}") from error
    yield from _numbered(row for batch in table.to_batches() for row in batch.to_pylist())


READERS: dict[str, Callable[[Path], Iterator[Located]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
}


def _library_rows(source: DatasetConfig) -> Iterator[Any]:
    """A directory of `save_to_disk`, or a hub dataset or a copy of one, by the `datasets` library."""
    import datasets

    split = source.split or "train"
    try:
        if source.path and any((source.path / name).exists() for name in SAVED):
            found = datasets.load_from_disk(str(source.path))
        else:
            where = str(source.path or source.hub)
            found = datasets.load_dataset(where, source.subset, split=split, revision=source.revision)
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"{source.place} cannot be read: {error}") from error
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            raise ValueError(f"{source.place} has no split {split!r}; it has {', '.join(found)}")
        found = found[split]
    return iter(found)


SAVED = ("dataset_dict.json", "state.json")
"""What `save_to_disk` writes for several splits, and for one dataset."""
