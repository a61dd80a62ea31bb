"""The finished search for the recipe `best`: the table and the figures that it left behind.

The code that made both is in the commit that the page names.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.claims import Claim, Report
from reproduction.workspace import Workspace

RESULTS = Path(__file__).parents[2] / "docs/reproduction"


class Search(Claim):
    """Rounds of trainings that will not be repeated.

    winner: the row of the fewest errors in the last round. errors, base: its mean errors there, and
    those of the row `affine`. error_p, loss_p: the p-values of the difference, by errors and loss.
    """

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        return json.loads((RESULTS / "page.json").read_text("utf-8"))[self.id]

    def table(self, report: Report) -> str:
        return (RESULTS / "candidates.md").read_text("utf-8").rstrip("\n")


CLAIM = Search("candidates")
