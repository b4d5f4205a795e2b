"""The form in which transformers stores a reward model: a sequence classifier with one output.

Training keeps a causal language model whose head has been replaced by one of a single output. Consumes its weights and
the config that the run started from; produces the same tensors under a classifier's names, and a classifier's config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.wire.part_files import Array, TensorSource

HEAD = "lm_head.weight"
SCORE = "score.weight"
CAUSAL = "ForCausalLM"
CLASSIFIER = "ForSequenceClassification"


class AsClassifier:
    """The tensors of a reward model under a classifier's names; a `TensorSource`.

    Raises `ConfigurationError` if they have no head of a single output.
    """

    def __init__(self, source: TensorSource) -> None:
        if source.shapes.get(HEAD, (0,))[0] != 1:
            raise ConfigurationError(f"the checkpoint has no {HEAD} of one row, so it is not one of a reward model")
        self._source = source
        self._names = {_renamed(name): name for name in source.shapes}
        self.shapes = {name: source.shapes[own] for name, own in self._names.items()}
        self.kinds = {name: source.kinds[own] for name, own in self._names.items()}

    def blocks(self, name: str) -> Iterator[Array]:
        """Yields a tensor's blocks of rows."""
        return self._source.blocks(self._names[name])


def classifier_config(config: Mapping[str, Any], pad: int | None) -> dict[str, Any]:
    """Returns the config of a causal language model as that of a classifier with one output.

    pad: the token that fills up shorter rows, without which transformers classifies no two rows at once; None if there is none.
    """
    named = [name.replace(CAUSAL, CLASSIFIER) for name in config.get("architectures") or ()]
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return {**config, "architectures": named, **labels, "tie_word_embeddings": False, "pad_token_id": pad}


def _renamed(name: str) -> str:
    return SCORE if name == HEAD else name
