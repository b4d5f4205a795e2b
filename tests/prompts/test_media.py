"""Images of prompts: read from every kind of file, stored once, checked on use; unusable ones are named."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import ExifTags, Image, ImageOps

from flows.branching.inheritance import copy_folder
from tests.datasets.test_source_files import SAVED, hugging_face
from tests.inputs.example_specs import VIRTUAL, png, run_spec, write_image_source, write_jsonl
from yatt_core.datasets.sources import collect_prompts
from yatt_core.errors import DataError
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts import media
from yatt_core.prompts.media import MAX_BYTES, MAX_PIXELS, decode_media, media_path, read_media, stored_addresses
from yatt_core.prompts.stream import Cursor, Prompt, draw

SMALL = {"held_out": 2, "probe": 1}
FEW = {"data": SMALL, **VIRTUAL}


def collected(source: dict[str, Any], **data: int) -> tuple[list[Prompt], list[Prompt], list[Prompt]]:
    """Returns a source's held-out, probe and training prompts."""
    found = collect_prompts(run_spec(source, data={**SMALL, **data}, **VIRTUAL).data, 0)
    return list(found.held_out), list(found.probe), list(found.train[0])


def address(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def parquet(path: Path, **columns: Any) -> dict[str, Any]:
    count = len(next(iter(columns.values())))
    table = pa.table({"prompt": [f"q{i}" for i in range(count)], **columns})
    pq.write_table(table, path)
    return {"kind": "parquet", "path": str(path), "image_field": "image"}


def test_every_prompt_has_its_images_and_the_bytes_are_as_they_were(tmp_path: Path) -> None:
    spec = run_spec(write_image_source(tmp_path / "images", 20), **FEW)
    materialise(spec, tmp_path / "r")
    inputs = Inputs.open(tmp_path / "r" / INPUTS, spec)
    references, _ = draw(spec.data, spec.seed, Cursor.start(spec.data), 17)
    prompts = [*inputs.held_out, *inputs.probe, *map(inputs.prompt, references)]
    assert sorted(int(prompt.answer or "") for prompt in prompts) == list(range(20))
    for prompt in prompts:
        data = (tmp_path / "images" / prompt.entry["image"]).read_bytes()
        assert prompt.media == (address(data),)
        assert read_media(tmp_path / "r" / INPUTS, prompt.media[0]) == data
        shade = int(prompt.answer or "")
        assert decode_media(data).getpixel((0, 0)) == (shade, 0, 7)


def test_paths_bytes_lists_and_features_give_the_same_addresses(tmp_path: Path) -> None:
    images = [png(i) for i in range(6)]
    for i, image in enumerate(images):
        (tmp_path / f"{i}.png").write_bytes(image)
    forms: list[list[Any]] = [
        images,
        [f"{i}.png" for i in range(6)],
        [str(tmp_path / f"{i}.png") for i in range(6)],
        [[image] for image in images],
        [{"bytes": image, "path": "elsewhere.png"} for image in images],
        [{"bytes": None, "path": f"{i}.png"} for i in range(6)],
        [[{"bytes": image, "path": None}] for image in images],
    ]
    for number, form in enumerate(forms):
        parts = collected(parquet(tmp_path / f"{number}.parquet", image=form))
        assert [p.media for part in parts for p in part] == [(address(images[i]),) for i in (5, 4, 0, 1, 2, 3)], form
        assert all(("image" in p.entry) == isinstance(form[0], str) for part in parts for p in part), (
            "bytes are not JSON"
        )
    rows = [{"prompt": f"q{i}", "image": [f"{i}.png", "0.png"] if i % 2 else None} for i in range(6)]
    source = {**write_jsonl(tmp_path / "a.jsonl", rows), "image_field": "image"}
    _, _, train = collected(source)
    assert [p.media for p in train] == [
        (address(images[1]), address(images[0])),
        (),
        (address(images[3]), address(images[0])),
    ]
    assert train[0].entry["image"] == ["1.png", "0.png"]


def test_images_saved_by_datasets() -> None:
    for field, counts in (("image", [1] * 5), ("images", [1, 2, 0, 1, 2])):
        _, _, train = collected(hugging_face(SAVED, image_field=field))
        assert [len(prompt.media) for prompt in train] == counts
        assert set(train[0].entry) == {"prompt", "chat", "answer"}


def test_tasks_differ_by_their_images(tmp_path: Path) -> None:
    same = [{"prompt": "Which colour?", "image": "a.png"}] * 3
    other = [{"prompt": " WHICH colour? ", "image": f"{name}.png"} for name in "bcd"]
    for i, name in enumerate("abcd"):
        (tmp_path / f"{name}.png").write_bytes(png(i))
    (tmp_path / "again.png").write_bytes(png(3))
    rows = [*same, *other, {"prompt": "which colour?", "image": "again.png"}, {"prompt": "Which colour?", "image": []}]
    source = {**write_jsonl(tmp_path / "a.jsonl", rows), "image_field": "image"}
    held_out, probe, train = collected(source)
    # From the end: the question without an image, then the fourth colour, whose other row is held out too.
    assert [p.media for p in held_out] == [(), (address(png(3)),)]
    assert [p.media for p in probe] == [(address(png(0)),)]
    assert [p.entry["image"] for p in train] == ["b.png", "c.png"]


def test_an_image_is_kept_once_and_synced_before_the_inputs_appear(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "same.png").write_bytes(png(1))
    (tmp_path / "other.png").write_bytes(png(2))
    rows = [{"prompt": f"q{i}", "image": ["same.png", "other.png"]} for i in range(30)]
    source = {**write_jsonl(tmp_path / "a.jsonl", rows), "image_field": "image"}
    events: list[str] = []
    real = Path.rename
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: events.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    monkeypatch.setattr(Path, "rename", lambda path, target: events.append(f"to {target}") or real(path, target))
    materialise(run_spec(source, **FEW), tmp_path / "r")
    before = events[: events.index(f"to {tmp_path / 'r' / INPUTS}")]
    temporary = tmp_path / "r" / ".inputs.tmp"
    for data in (png(1), png(2)):
        path = media_path(temporary, address(data))
        assert before.count(str(path)) == 1
        assert {str(path.parent), str(path.parent.parent)} <= set(before[before.index(str(path)) :])
    manifest = json.loads((tmp_path / "r" / INPUTS / "manifest.json").read_text())
    assert manifest["media"]["images"] == 2 and not any("media" in name for name in manifest["files"])
    assert list(stored_addresses(tmp_path / "r" / INPUTS)) == sorted([address(png(1)), address(png(2))])


def test_a_damaged_or_missing_image_is_detected(tmp_path: Path) -> None:
    spec = run_spec(write_image_source(tmp_path / "images", 6), **FEW)
    receipt = materialise(spec, tmp_path / "r")
    inputs = tmp_path / "r" / INPUTS
    chosen = next(stored_addresses(inputs))
    path = media_path(inputs, chosen)
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + b"?")
    with pytest.raises(DataError, match=rf"{chosen}: the image is damaged"):
        read_media(inputs, chosen)
    path.unlink()
    with pytest.raises(DataError, match=rf"{chosen}: the image cannot be read: No such file"):
        read_media(inputs, chosen)
    with pytest.raises(DataError, match=r"media holds 5 images .*6 images"):
        materialise(spec, tmp_path / "r")
    path.with_name("0" * 64).write_bytes(kept)
    with pytest.raises(DataError, match=r"media holds 6 images .*6 images"):
        materialise(spec, tmp_path / "r")
    path.with_name("0" * 64).rename(path)
    assert materialise(spec, tmp_path / "r") == receipt
    for wrong in ("../../../etc/passwd", "", "A" * 64):
        with pytest.raises(DataError, match="64 hexadecimal digits"):
            read_media(inputs, wrong)


def test_a_fork_includes_the_images(tmp_path: Path) -> None:
    spec = run_spec(write_image_source(tmp_path / "images", 6), **FEW)
    receipt = materialise(spec, tmp_path / "r")
    copy_folder(tmp_path / "r" / INPUTS, tmp_path / "fork" / INPUTS)
    assert materialise(spec, tmp_path / "fork") == receipt
    prompt = Inputs.open(tmp_path / "fork" / INPUTS, spec).held_out[0]
    assert address(read_media(tmp_path / "fork" / INPUTS, prompt.media[0])) == prompt.media[0]


def test_decoding_gives_upright_rgb() -> None:
    corner = Image.new("RGB", (8, 4), (250, 0, 0))
    corner.putpixel((0, 0), (0, 0, 250))
    for orientation in range(1, 10):
        turned = Image.Exif()
        turned[ExifTags.Base.Orientation] = orientation
        data = encoded(corner, "PNG", exif=turned)
        upright = decode_media(data)
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        assert (upright.mode, upright.size) == ("RGB", expected.size)
        assert upright.tobytes() == expected.tobytes(), orientation
    assert decode_media(encoded(Image.new("RGBA", (2, 2), (1, 2, 3, 0)), "PNG")).getpixel((0, 0)) == (1, 2, 3)
    assert decode_media(encoded(Image.new("L", (2, 2), 9), "PNG")).getpixel((0, 0)) == (9, 9, 9)


def with_exif(*entries: bytes) -> bytes:
    """Returns an 8 x 4 JPEG file with the entries of a little-endian TIFF directory: tag, type, count, value."""
    plain = encoded(Image.new("RGB", (8, 4)), "JPEG")
    tiff = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)
    block = b"Exif\0\0" + tiff
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[2:]


def test_a_tag_of_the_wrong_type_next_to_the_orientation_is_ignored() -> None:
    orientation = struct.pack("<HHIHH", ExifTags.Base.Orientation, 3, 1, 6, 0)
    resolution = struct.pack("<HHI4s", ExifTags.Base.XResolution, 2, 3, b"72\0\0")
    assert decode_media(with_exif(orientation, resolution)).size == (4, 8)


def deep_png(colour_type: int, channels: int) -> bytes:
    """Returns a one-pixel PNG file with 16 bits per channel, which Pillow cannot write in colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 16, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"\0" + b"\x12\x34" * channels)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_a_channel_are_refused_in_grey_and_in_colour(colour_type: int, channels: int) -> None:
    with pytest.raises(DataError, match="16 bits per channel; expected 8"):
        decode_media(deep_png(colour_type, channels))


def test_a_file_with_too_many_bytes_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match=r"1,001 bytes.* 1,000$"):
        decode_media(bytes(1001))


def bomb() -> bytes:
    """Returns a PNG file of a few kilobytes that claims one line of pixels too many."""
    return encoded(Image.new("1", (8000, MAX_PIXELS // 8000 + 1)), "PNG", optimize=True)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"no image", r".*PNG or JPEG"),
        (encoded(Image.new("P", (2, 2)), "GIF"), r".*PNG or JPEG"),
        (png(1, 2, 3, size=(64, 64))[:-30], r"it cannot be decoded: "),
        (encoded(Image.new("RGB", (64, 64)), "JPEG")[:-300], r"it cannot be decoded: Truncated File Read"),
        (encoded(Image.new("I;16", (2, 2)), "PNG"), r".*16 bits per channel; expected 8"),
        (bomb(), r"8000 x 8001 pixels .*64,000,000"),
        (encoded(Image.new("1", (20_000, 20_000)), "PNG"), r"it has too many pixels"),
        (png(1, size=(4, 401)), r"4 x 401 pixels .*100 times"),
        (png(1, size=(101, 1)), r"101 x 1 pixels .*100 times"),
    ],
)
def test_images_that_cannot_be_used_are_named(tmp_path: Path, image: bytes, message: str) -> None:
    good = [png(i) for i in range(6)]
    with pytest.raises(DataError, match=rf"a\.parquet:4: image 2 of 'image': {message}"):
        collected(
            parquet(
                tmp_path / "a.parquet", image=[*([i] for i in good[:3]), [good[0], image], *([i] for i in good[4:])]
            )
        )
    with pytest.raises(DataError, match=message):
        decode_media(image)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "no.png"}, r"a\.jsonl:2: image 1 of 'image': .*no\.png cannot be read: No such file"),
        ({"image": "."}, r"a\.jsonl:2: image 1 of 'image': .* cannot be read: .*regular file"),
        ({"image": "a\0b"}, r"a\.jsonl:2: image 1 of 'image': .* cannot be read: .*embedded null"),
        ({"image": "pipe"}, r"a\.jsonl:2: image 1 of 'image': .*pipe cannot be read: .*regular file"),
        ({"image": "large"}, r"a\.jsonl:2: image 1 of 'image': .* it has 192,000,001 bytes.* 192,000,000$"),
        (
            {"image": "../outside.png"},
            r"a\.jsonl:2: image 1 of 'image': .*outside\.png cannot be read: .*outside of .*rows",
        ),
        ({"image": "/dev/zero"}, r"a\.jsonl:2: image 1 of 'image': /dev/zero cannot be read: .*outside of .*rows"),
        ({"image": "loop.png"}, r"a\.jsonl:2: image 1 of 'image': .* cannot be read: Too many levels of symbolic"),
        ({"image": 7}, r"a\.jsonl:2: image 1 of 'image' is int; .*path.*PNG or JPEG"),
        ({"image": [None]}, r"a\.jsonl:2: image 1 of 'image' is NoneType; .*path"),
        ({"image": {"bytes": None, "path": None}}, r"a\.jsonl:2: image 1 of 'image' is NoneType; .*path"),
        (
            {"images": "0.png"},
            r"a\.jsonl:2: the row has no key 'image' for the image \(data\.sources image_field\).*'images'",
        ),
    ],
)
def test_rows_whose_images_cannot_be_loaded_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for path in (folder / "0.png", tmp_path / "outside.png"):
        path.write_bytes(png(0))
    os.mkfifo(folder / "pipe")
    (folder / "large").touch()
    os.truncate(folder / "large", MAX_BYTES + 1)
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    (folder / "loop.png").symlink_to("loop.png")
    rows = [{"prompt": "a", "image": ["0.png", "link.png"]}, {"prompt": "b", **row}]
    with pytest.raises(DataError, match=message):
        collected({**write_jsonl(folder / "a.jsonl", rows), "image_field": "image"})
