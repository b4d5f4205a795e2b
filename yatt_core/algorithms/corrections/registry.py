"""The importance corrections that a spec can name, one line each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from yatt_core.algorithms.corrections.mask import MaskCorrection
from yatt_core.algorithms.corrections.truncate import TruncateCorrection

CorrectionSpec = Annotated[TruncateCorrection | MaskCorrection, Field(discriminator="kind")]
