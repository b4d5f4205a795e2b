"""Which rows of a divided tensor a rank holds: for all that shards with FSDP2.

Consumes tensors of torch's distributed library, each divided over the ranks by rows. Produces ranges of rows. Pure.
"""

from __future__ import annotations

from torch.distributed.tensor import DTensor


def own_rows(parameter: DTensor) -> slice:
    """Returns the rows of a parameter that this rank holds, as distributed by `torch.chunk`."""
    mesh = parameter.device_mesh
    rows = parameter.shape[0]
    start = min(mesh.get_local_rank() * -(-rows // mesh.size()), rows)
    return slice(start, start + parameter.to_local().shape[0])
