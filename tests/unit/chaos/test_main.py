from __future__ import annotations

from pathlib import Path

import pytest

from services.common.errors import UserError
from tests.chaos.__main__ import check_page, main
from tests.chaos.report import BEGIN, END


def test_a_page_with_a_place_for_the_table_is_taken(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\n")
    check_page(page)
    assert page.read_text() == f"before\n{BEGIN}\nold\n{END}\n"


def test_a_page_without_one_is_refused_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("no place\n")
    for file, why in ((page, "the page lacks"), (tmp_path / "missing.md", "No such file")):
        with pytest.raises(UserError, match=f"cannot take the table: .*{why}"):
            check_page(file)
        assert main(["--docs", str(file), "--only", "kill_actor"]) == 2
        assert why in capsys.readouterr().err
