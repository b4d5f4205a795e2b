"""Model folders as people have them: a byte-level tokenizer with the tokens of a chat, a chat template, small random weights."""

from __future__ import annotations

from pathlib import Path

from tests.models.folders import CHATML, byte_level
from yatt_core.models.model_folder import make_model
from yatt_core.models.tokenizer import IMAGE, PAD, SEPARATOR
from yatt_core.spec.sections.model import ModelFromConfig, VisionSpec

WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\nTools: {% for t in tools %}{{ t | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m['content'] }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>\n{{ c['function'] | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = ModelFromConfig(hidden_size=16, layers=1, heads=2, key_value_heads=2, intermediate_size=16, max_positions=1024)
TOWER = VisionSpec(image_size=16, patch_size=8, hidden_size=16, layers=1, heads=2, intermediate_size=16)


def make_folder(
    folder: Path, template: str | None = CHATML, vision: bool = False, positions: int = SIZES.max_positions
) -> Path:
    """Writes a model's folder and returns it.

    template: the chat template; None for a model without one.
    vision: whether the model has a vision tower.
    positions: maximum number of tokens of prompt and response.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level((PAD, "<|im_end|>", SEPARATOR, "<unk>", IMAGE, "<|im_start|>")),
        eos_token="<|im_end|>",
        pad_token=PAD,
        model_max_length=positions,
    )
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    sizes = SIZES.model_copy(update={"vision": TOWER if vision else None, "max_positions": positions})
    make_model(sizes, len(tokenizer), 0, folder)
    return folder
