"""docs/configuration.md says what the classes of the settings say."""

from pathlib import Path

from ps_cluster.cli.reference import page
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.user_settings import MOST_FILES, VARIABLE

PAGE = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_page_of_settings_is_up_to_date():
    again = "write its table anew: python -m ps_cluster.cli.reference docs/configuration.md"
    assert page(PAGE) == PAGE, again
    assert f"{MOST_FILES} files at most" in PAGE and f"`{VARIABLE}OPTIMIZER__LEARNING_RATE=0.3`" in PAGE


def test_a_setting_of_one_rule_is_listed_with_its_range_and_default():
    field = RULES["adam"].Settings.model_fields["beta_2"]
    assert f"| `optimizer.beta_2` | number ≥ 0, < 1 | `{field.default}` |" in PAGE


def test_no_cell_of_the_page_is_cut_by_what_it_says():
    listed = PAGE.partition("## All settings")[2]
    rows = [line for line in listed.splitlines() if line.startswith("|")]
    assert len(rows) > 50 and {line.count("|") for line in rows} == {5}
