"""The rollout engine on plain torch: decodes any dense causal transformers model in a loop of our own.

Llama and Qwen models also run on our own kernels. Consumes decode batches, the images they name, and new
weights; produces responses. Its weights are undefined (version -1) until the first update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from yatt_core.engines.dense.kernels import KernelChoice
from yatt_core.engines.device import own_device, placed
from yatt_core.engines.host_memory import keep_freed_memory
from yatt_core.engines.images import open_reader
from yatt_core.engines.rollout.own_tensors import OwnTensors
from yatt_core.engines.rollout.torch.decoding import decode, decode_pieces
from yatt_core.engines.rollout.torch.runners import open_runner
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult


class TorchRolloutEngine(OwnTensors):
    """One engine on one thread, and on its process's GPU if there is one.

    max_prompt_tokens, max_new_tokens: limits on a request, in tokens.
    inputs_folder: folder of the images that requests name by address.
    folder_version: version of the weights in the model folder; -1 if they only define the shapes and the
        first update supplies the weights.
    kernels: `general` always runs transformers' own module.
    max_num_seqs: maximum number of responses in progress; the others of a decode batch enter as these end.
    aligned: whether tokens have the log-probabilities of an aligned trainer, to the last bit.
    """

    def __init__(
        self,
        model_path: str,
        dtype: str,
        max_prompt_tokens: int,
        max_new_tokens: int,
        inputs_folder: Path,
        folder_version: int = -1,
        kernels: KernelChoice = "auto",
        max_num_seqs: int | None = None,
        aligned: bool = False,
    ) -> None:
        # The order of additions, and so every bit, depends on the number of threads.
        torch.set_num_threads(1)
        keep_freed_memory()
        device = own_device()
        model = load_causal_lm(model_path, dtype).requires_grad_(False)
        self._model = placed(model, device, "the rollout engine")
        reader = open_reader(self._model, model_path, inputs_folder)
        self._runner = open_runner(self._model, reader, kernels, fused=True, aligned=aligned)
        self._max_prompt_tokens = max_prompt_tokens
        self._max_new_tokens = max_new_tokens
        self._max_sequences = max_num_seqs
        tensors, renamed = _state(self._model)
        super().__init__(tensors, renamed)
        self._version = folder_version
        self._capabilities = {
            "batch_invariant": self._runner.batch_invariant,
            "sleep": True,
            "in_flight_update": False,
            "delta_sync": True,
        }

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """The engine's capabilities, by name."""
        return self._capabilities

    def generate(self, request: GenerateRequest) -> GenerateResult:
        """Answers every prompt as often as the request asks.

        Raises `InfrastructureError` if asked for a version other than its own, `DataError` for a prompt that
        is too long, `ConfigurationError` for more new tokens than the engine was built for, `NumericError` if
        logits are not finite.
        """
        self._make_ready(request)
        return decode(self._runner, request, self._max_sequences)

    def stream(self, request: GenerateRequest) -> Iterator[GeneratePiece | None]:
        """Yields the responses of `generate`, each as soon as it has ended. Raises as `generate` does."""
        self._make_ready(request)
        return decode_pieces(self._runner, request, self._max_sequences)

    def _make_ready(self, request: GenerateRequest) -> None:
        """Wakes up for a request. Raises as `generate` does if it cannot be answered."""
        if request.weight_version != self._version or self._version < 0:
            raise InfrastructureError(
                f"the torch rollout engine holds weights of version {self._version}, but the request needs version"
                f" {request.weight_version}; sync it first"
            )
        if request.max_new_tokens > self._max_new_tokens:
            raise ConfigurationError(
                f"the request asks for {request.max_new_tokens} new tokens, but the engine was built for"
                f" {self._max_new_tokens}"
            )
        for row, prompt in enumerate(request.prompts):
            if len(prompt) > self._max_prompt_tokens:
                raise DataError(
                    f"prompt {row} of the decode batch has {len(prompt)} tokens; data.max_prompt_tokens is"
                    f" {self._max_prompt_tokens}"
                )
        self._wake()

    def _complete(self, version: int) -> None:
        self._runner.clear()

    def _sleep(self) -> None:
        """Frees the key/value cache, too."""
        self._runner.release()
        super()._sleep()


def _state(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns the model's tensors, tied ones under their first name only, and a map from all names to first names."""
    first: dict[tuple[int, torch.Size], str] = {}
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        owner = first.setdefault((tensor.data_ptr(), tensor.shape), name)
        tensors.setdefault(owner, tensor)
        aliases[name] = owner
    return tensors, aliases
