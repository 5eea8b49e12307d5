"""The list of NeMo-RL's names, and what it makes of the schema."""

from pathlib import Path

import yaml

from equipoise.config.nemo_rl import installation
from equipoise.config.schema import Config
from equipoise.config.validate import known_keys, whole_schema

LISTED = yaml.safe_load(Path(installation.__file__).with_name("keys.yaml").read_text("utf-8"))
NAMES = {
    name if section == "top" else f"{section}.{name}"
    for section, names in LISTED.items()
    for name in names
}


def test_every_listed_name_is_known_and_lies_in_a_listed_section():
    assert NAMES - set(known_keys(whole_schema())) == set()
    assert set(LISTED) - NAMES == {"top"}


def test_every_key_that_equipoise_reads_is_one_of_nemo_rls():
    """In the sections that are listed; what lies below other keys NeMo-RL's classes leave open.

    Trackers of TRL are refused with NeMo-RL.
    """
    ours = {key for key in known_keys(Config) if not key.startswith("equipoise")}
    unlisted = {key for key in ours - NAMES if (key.rpartition(".")[0] or "top") in LISTED}
    assert unlisted == {"logger.report_to"}
