"""The sizes of the judge, and how it is trained."""

from yatt_core.spec.sections.model import ModelFromConfig, SftSpec

NETWORK = ModelFromConfig(
    hidden_size=64, layers=3, heads=4, key_value_heads=4, intermediate_size=172, max_positions=512
)
TRAINING = SftSpec(
    demonstrations=20_000,
    batch_size=128,
    max_steps=1500,
    stop_accuracy=0.99,
    probe_every=50,
    learning_rate=2e-3,
    lr_warmup_steps=50,
    min_lr_ratio=0.02,
)
"""`demonstrations` counts training prompts; the accuracy is measured on answers to `data.probe` tasks."""
