"""A run's images as Arrow tables, for exports: PNG files in the form in which `datasets` and pandas read images from Parquet.

Consumes the ledger and the stored images, verified against its digests. Produces a table per iteration.
"""

from __future__ import annotations

import pyarrow as pa

from db.ledger import Ledger
from flows.run.home import Home
from ops.queries.images import image_folder
from yatt_core.workloads.images import image_file

SCHEMA = pa.schema(
    [
        pa.field("run", pa.string()),
        pa.field("iteration", pa.int64()),
        pa.field("caption", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("seed", pa.uint64()),
        pa.field("image", pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])),
    ]
)


def image_table(ledger: Ledger, home: Home, run: str, iteration: int) -> pa.Table:
    """Returns the images of an iteration with caption, reward and seed, in the order of the samples.

    Raises `RunNotFound`, `ConfigurationError` if none are recorded, and `DataError` if they are not here or damaged.
    """
    found = image_folder(ledger, home, run, iteration)
    images = found.images
    columns = {
        "run": [run] * len(images),
        "iteration": [iteration] * len(images),
        "caption": [image.caption for image in images],
        "reward": [image.reward for image in images],
        "seed": [image.seed % 2**64 for image in images],
        "image": [{"bytes": found.read(image.address), "path": image_file(image.address)} for image in images],
    }
    return pa.Table.from_pydict(columns, SCHEMA)
