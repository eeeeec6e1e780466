"""Files of every kind, saved directories and copies of hub datasets, read to the same rows."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.learner.config.data import DatasetConfig
from services.learner.data.sources import read_rows

ROWS: list[dict[str, Any]] = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(5)]


def read(path: Path, **config: Any) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(DatasetConfig(path=path, **config))]


def write_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def write_json(path: Path) -> None:
    path.write_text(json.dumps(ROWS, indent=1))


def write_csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer"])
        writer.writeheader()
        writer.writerows(ROWS)


def write_parquet(path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=2)


def write_arrow(path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(ROWS)
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_arrow_stream(path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(ROWS)
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


WRITERS = [
    (write_jsonl, "p.jsonl"),
    (write_jsonl, "lines_after_all.json"),
    (write_json, "p.json"),
    (write_csv, "p.csv"),
    (write_parquet, "p.parquet"),
    (write_arrow, "p.arrow"),
    (write_arrow_stream, "stream.arrow"),
]


@pytest.mark.parametrize(("writer", "name"), WRITERS, ids=lambda value: getattr(value, "__name__", value))
def test_every_kind_of_file_gives_the_same_rows_and_the_first_of_them(
    tmp_path: Path, writer: Any, name: str
) -> None:
    writer(tmp_path / name)
    assert read(tmp_path / name) == ROWS
    assert read(tmp_path / name, limit=3) == ROWS[:3]


@pytest.mark.parametrize(
    ("writer", "name"), [(write_jsonl, "p.jsonl"), (write_json, "p.json"), (write_csv, "p.csv")]
)
def test_a_byte_order_mark_is_not_part_of_the_first_row(tmp_path: Path, writer: Any, name: str) -> None:
    writer(tmp_path / name)
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
    assert read(tmp_path / name) == ROWS


def test_a_list_of_rows_may_lie_under_data(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"version": 1, "data": ROWS}))
    assert read(tmp_path / "p.json") == ROWS


def test_unicode_line_separators_inside_a_row_are_part_of_it(tmp_path: Path) -> None:
    row = {"question": "one\u2028two\u0085three\x0cfour", "answer": "4"}
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    assert read(path) == [row]


def test_windows_line_ends_and_empty_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"a": 1}\r\n\r\n{"a": 2}\r\n')
    assert list(read_rows(DatasetConfig(path=path))) == [("line 1", {"a": 1}), ("line 3", {"a": 2})]


def test_a_cell_of_a_csv_file_may_hold_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    row = {"question": 'a "b",\nc', "answer": "d"}
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([row.keys(), row.values()])
    assert list(read_rows(DatasetConfig(path=path))) == [("line 3", row)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b'{"a": 1}\n{"a": \n', "p.jsonl, line 2: Expecting value"),
        ("p.jsonl", b'{"a": "\xff"}\n', "p.jsonl cannot be read: 'utf-8' codec"),
        ("p.json", b'[{"a": 1}', "p.json: Expecting ',' delimiter"),
        ("p.json", b'{"rows": []}', "p.json must hold a list of rows, or an object with it as 'data'"),
        ("p.csv", b"a,b\n1,2\n3\n", "p.csv, line 3: 1 cells under 2 columns"),
        ("p.csv", b"a,b\n1,2,3\n", "p.csv, line 2: 3 cells under 2 columns"),
        ("p.csv", b'a,b\n1,"2\n', "p.csv cannot be read: unexpected end of data"),
        ("p.csv", b"a\n" + b"x" * 200_000, "p.csv cannot be read: field larger than field limit"),
        ("p.txt", b"hello", "p.txt cannot be read: '.txt' is none of .jsonl"),
        ("p.parquet", b"hello", "p.parquet cannot be read: Parquet"),
        ("p.arrow", b"hello", "p.arrow cannot be read: "),
        ("p.arrow", b"ARROW1hello", "p.arrow cannot be read: "),
    ],
)
def test_a_broken_file_is_named_with_the_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    if name.endswith(("parquet", "arrow")):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read(tmp_path / name)
    assert message in str(caught.value)


def test_a_missing_file_is_named_with_the_other_way(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.jsonl cannot be read: .* write hub instead of path"):
        read(tmp_path / "nowhere.jsonl")


def test_a_split_of_a_file_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "p.jsonl")
    with pytest.raises(ValueError, match="is a file; split and subset are for directories"):
        read(tmp_path / "p.jsonl", split="test")


def test_json_and_csv_need_no_library_and_parquet_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "p.parquet")
    for library in ("pyarrow", "datasets", "pandas"):
        monkeypatch.setitem(sys.modules, library, None)
    for writer, name in ((write_jsonl, "p.jsonl"), (write_json, "p.json"), (write_csv, "p.csv")):
        writer(tmp_path / name)
        assert read(tmp_path / name) == ROWS
    with pytest.raises(ValueError, match=r"p\.parquet needs pyarrow: pip install 'rollstream\[data\]'"):
        read(tmp_path / "p.parquet")
    with pytest.raises(ValueError, match=r"needs datasets: pip install"):
        list(read_rows(DatasetConfig(hub="openai/gsm8k")))


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The library, keeping its copies in the test's folder and asking nobody."""
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", True)
    library.disable_progress_bars()
    yield library


def test_a_directory_of_save_to_disk_is_read(tmp_path: Path, datasets: Any) -> None:
    datasets.Dataset.from_list(ROWS).select([4, 0, 2]).save_to_disk(tmp_path / "one")
    assert read(tmp_path / "one") == [ROWS[4], ROWS[0], ROWS[2]]
    both = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:1])}
    datasets.DatasetDict(both).save_to_disk(tmp_path / "both")
    assert read(tmp_path / "both") == ROWS
    assert read(tmp_path / "both", split="test") == ROWS[:1]
    with pytest.raises(ValueError, match=r"both has no split 'dev'; it has train, test"):
        read(tmp_path / "both", split="dev")


def test_a_copy_of_a_hub_dataset_is_read_by_subset_and_split(tmp_path: Path, datasets: Any) -> None:
    copy = tmp_path / "copy"
    for subset in ("main", "socratic"):
        (copy / subset).mkdir(parents=True)
        write_jsonl(copy / subset / "train.jsonl")
        (copy / subset / "test.jsonl").write_text(json.dumps({"question": subset, "answer": "1"}) + "\n")
    configs = [
        {
            "config_name": name,
            "data_files": [{"split": s, "path": f"{name}/{s}.jsonl"} for s in ("train", "test")],
        }
        for name in ("main", "socratic")
    ]
    (copy / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    assert read(copy, subset="main") == ROWS
    assert read(copy, subset="socratic", split="test") == [{"question": "socratic", "answer": "1"}]
    with pytest.raises(ValueError, match=r"copy cannot be read: .*'mian'"):
        read(copy, subset="mian")
    with pytest.raises(ValueError, match='copy cannot be read: Unknown split "dev"'):
        read(copy, subset="main", split="dev")


def test_a_hub_dataset_that_cannot_be_had_is_named(datasets: Any) -> None:
    with pytest.raises(ValueError, match="dataset nobody/nothing cannot be read: "):
        list(read_rows(DatasetConfig(hub="nobody/nothing")))


def test_an_empty_directory_is_refused(tmp_path: Path, datasets: Any) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty cannot be read: "):
        read(tmp_path / "empty")
