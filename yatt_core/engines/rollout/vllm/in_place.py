"""Writes new weights straight into the tensors with which a vLLM worker computes on CPU cores, rectangle by rectangle.

Imports vLLM. Consumes pieces of buckets in any order. vLLM's own reload assembles each tensor, copies it into a new layer, and
copies that into the old one; here numbers move once. Of a matrix that vLLM keeps only in packed form, the worker holds an
unpacked copy from the first of its numbers until it is packed again. Only for architectures whose tensors are known to be
found (`HeldTensors`); the others, quantised weights and accelerators take vLLM's way.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.utils import check_cpu_sgl_kernel, dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.models.utils import is_pp_missing_parameter
from vllm.platforms import current_platform

from yatt_core.engines.host_memory import large_pages
from yatt_core.engines.rollout.tensor_bits import as_tensor
from yatt_core.engines.rollout.vllm.held_weights import HeldTensors, input_width
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import Piece
from yatt_core.wire.parts import Box

ARCHITECTURES = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
UNCHANGED = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
"""vLLM's ways to keep a layer's weights that pack them, at most."""
ROW_GAP_BYTES = 64
"""Between the rows of a matrix to be packed. Without it, the numbers of a column often share a few places of the
processor's cache, and packing, which goes by columns, takes four times as long."""


def takes_in_place(model: Any, architectures: list[str]) -> bool:
    """Returns True if all tensors of a worker's model can be written in place."""
    known = bool(current_platform.is_cpu()) and not set(architectures) - ARCHITECTURES
    kept = (getattr(module, "quant_method", None) for module in model.modules() if has_weight(module))
    return known and all(method is None or type(method) in UNCHANGED for method in kept)


def has_weight(module: Any) -> bool:
    """Returns True if a module itself has a weight."""
    return isinstance(getattr(module, "weight", None), torch.nn.Parameter)


def _is_packed(module: Any) -> bool:
    return getattr(module, "cpu_linear", None) is not None


class TensorsInPlace(HeldTensors):
    """The tensors of a worker's model, for one update."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._model = model
        self._head = model.lm_head
        self._unpacked: dict[int, torch.Tensor] = {}
        self._scratch = Scratch()
        self._missing: dict[int, int] = {}
        """Numbers that a matrix of which vLLM keeps a packed copy still lacks; 0 once it is packed."""
        if _is_packed(self._head) and self._head.weight.is_contiguous():
            _part_rows(self._head.weight)

    @property
    def scratch_bytes(self) -> int:
        """Memory for unpacked matrices, in bytes."""
        return self._scratch.nbytes

    @torch.no_grad()
    def put(self, name: str, piece: Piece) -> None:
        """Writes a piece, or what the worker has of it; nothing of a layer that another pipeline stage has.

        name: the model's own name of the tensor.

        Raises `InfrastructureError` for changes, and for a tensor that is not found.
        """
        if piece.changed is not None:
            raise InfrastructureError(f"weights: only changes of {name} arrived, but the engine needs all of it")
        if is_pp_missing_parameter(name, self._model):
            return
        part = self.part(name, piece.shape)
        module, _ = self.module_of(name)
        if part is None:
            raise InfrastructureError(f"weights: the vLLM worker has no tensor {name} of shape {piece.shape}")
        own = Box(part.offsets, tuple(part.values.shape))
        if (overlap := piece.box.within(own)) is None:
            return
        arrived = as_tensor(piece.values, piece.kind)[overlap.slices(piece.box.offsets)]
        part.values[overlap.slices(own.offsets)].copy_(arrived)
        if id(module) in self._unpacked and name.endswith(".weight"):
            self._missing[id(module)] -= arrived.numel()
            if not self._missing[id(module)]:
                self._pack(module)
        elif _is_packed(self._head) and module.weight is self._head.weight:
            head = id(self._head)
            self._missing[head] = self._missing.get(head, part.values.numel()) - arrived.numel()
            if not self._missing[head]:
                self._head.cpu_linear = None
                dispatch_cpu_unquantized_gemm(self._head, remove_weight=False)

    def _pack(self, module: Any) -> None:
        """Packs a matrix all of whose numbers have arrived; the old copy goes first."""
        module.cpu_linear = None
        unpacked = self._unpacked.pop(id(module))
        module.weight = torch.nn.Parameter(unpacked, requires_grad=False)
        dispatch_cpu_unquantized_gemm(module, remove_weight=True)
        if not module.weight.numel():
            self._scratch.give_back(unpacked)

    @torch.no_grad()
    def end(self) -> None:
        """Drops the packed copy of the embeddings that vLLM keeps beside that of the head, which nothing reads.

        Raises `InfrastructureError` if a matrix is not complete.
        """
        if incomplete := sum(missing > 0 for missing in self._missing.values()):
            raise InfrastructureError(f"weights: {incomplete} matrices of the vLLM worker are not complete")
        for module in self._modules.values():
            if _is_packed(module) and module.weight.numel() and module is not self._head:
                module.cpu_linear = None

    def _values(self, module: Any, attribute: str) -> torch.Tensor | None:
        """See `HeldTensors`; returns memory to write to."""
        found = getattr(module, attribute, None)
        if not isinstance(found, torch.Tensor):
            return None
        if attribute != "weight" or found.numel():
            return found
        rows = sum(module.output_partition_sizes)
        width = input_width(module)
        if self._missing.setdefault(id(module), rows * width) == 0:
            # Only other workers lack numbers of it, which are not written here.
            return torch.empty(rows, width, dtype=found.dtype, device="meta")
        if id(module) not in self._unpacked:
            self._unpacked[id(module)] = self._scratch.matrix(rows, width, found.dtype)
        return self._unpacked[id(module)]

    def _vocabulary(self, module: Any, values: torch.Tensor) -> torch.Tensor:
        """See `HeldTensors`; packed copies follow."""
        return values


class Scratch:
    """Memory for matrices until they are packed: that of a packed one is used again, so that its pages are found once."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._free: dict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = {}

    def matrix(self, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns a matrix of any content."""
        if free := self._free.get((torch.Size((rows, width)), dtype)):
            return free.pop()
        row = width + _row_gap(rows, width, dtype)
        nbytes = rows * row * dtype.itemsize
        self.nbytes += nbytes
        return torch.frombuffer(large_pages(nbytes), dtype=dtype, count=rows * row).view(rows, row)[:, :width]

    def give_back(self, matrix: torch.Tensor) -> None:
        """Takes back the memory of a matrix that has been packed; of one without gaps, the packed copy may still use it."""
        if matrix.is_contiguous():
            self.nbytes -= matrix.nbytes
        else:
            self._free.setdefault((matrix.shape, matrix.dtype), []).append(matrix)


def _row_gap(rows: int, width: int, dtype: torch.dtype) -> int:
    """Returns by how many numbers the rows of a matrix to be packed are apart; only oneDNN packs rows that are apart."""
    other_packer = current_platform.is_zen_cpu() or check_cpu_sgl_kernel(rows, width, dtype)
    return 0 if other_packer else ROW_GAP_BYTES // dtype.itemsize


def _part_rows(weight: torch.nn.Parameter) -> None:
    """Puts a gap between a matrix's rows, if it has any use. The numbers are lost: there is no memory for a second copy."""
    rows, width = weight.shape
    dtype = weight.dtype
    if gap := _row_gap(rows, width, dtype):
        weight.data = torch.empty(0, dtype=dtype)
        weight.data = torch.zeros(rows, width + gap, dtype=dtype)[:, :width]
