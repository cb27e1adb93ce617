"""Where tests find data from outside the project, if it is there.

One setting says where: the environment variable OPTVET_TEST_DATA; by default it is the folder
``shared`` beside the checkout. What is not there is skipped, with the path in the reason.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "OPTVET_TEST_DATA"
DATA = Path(os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2] / "shared")
