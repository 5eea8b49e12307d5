"""The documentation's site: it builds without a warning, and its reference is whole."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from equipoise.commands.main import VERBS
from equipoise.commands.prepare import find_task
from equipoise.config.schema import Config
from equipoise.config.validate import known_keys

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NO_SPHINX = "needs the group docs: uv run --group docs pytest tests/test_site.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, with warnings as errors: links between pages and to headings are right."""
    if not (find_spec("furo") and find_spec("myst_parser")):
        pytest.skip(NO_SPHINX)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-c", "docs", ".", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def parsed(page):
    from bs4 import BeautifulSoup  # furo has it

    return BeautifulSoup(page.read_text("utf-8"), "html.parser")


@pytest.fixture(scope="module")
def reference(site):
    """Key -> meaning, of every table in the reference of the configuration."""
    keys = {}
    for table in parsed(site / "docs" / "generated" / "keys.html").find_all("table"):
        title = table.find_previous(["h2", "h3"]).code
        for row in table.tbody.find_all("tr"):
            cells = row.find_all("td")
            section = f"{title.get_text()}." if title else ""
            keys[section + cells[0].code.get_text()] = cells[3].get_text().strip()
    return keys


def task_models():
    """Section -> class of what tasks add."""
    for path in DOCS.parent.glob("nemo_configs/*/*.yaml"):
        ours = yaml.safe_load(path.read_text("utf-8")).get("equipoise", {})
        if path.parent.name == "tasks" and "environment" in ours:
            module, _, name = ours["environment"].rpartition(".")
            environment = getattr(import_module(module), name)
            data = find_task(path.stem)
            yield f"env.{environment.name}", environment.Settings
            yield "equipoise.data", data.PromptSettings
            if data.LocalModelSettings:
                yield "equipoise.local_model", data.LocalModelSettings


@pytest.mark.deep
class TestTheSite:
    def test_every_key_of_the_schema_is_in_the_reference_with_its_meaning(self, reference):
        wanted = set(known_keys(Config))
        assert len(wanted) > 150 and not wanted - reference.keys()

    def test_so_is_every_key_that_a_task_adds(self, reference):
        wanted = {
            f"{section}.{key}" for section, model in task_models() for key in model.model_fields
        }
        assert len(wanted) > 50 and not wanted - reference.keys()

    def test_every_key_has_a_meaning(self, reference):
        assert not [key for key, meaning in reference.items() if not meaning]

    def test_every_verb_is_in_the_reference_with_its_help(self, site):
        page = parsed(site / "docs" / "generated" / "commands.html")
        helps = {
            section.h2.find(string=True): section.pre.get_text()
            for section in page.find_all("section")
            if section.find("h2", recursive=False)
        }
        assert helps.keys() == {f"equipoise {verb}" for verb in VERBS}
        for title, text in helps.items():
            assert text.lower().startswith(f"usage: {title}"), title

    def test_the_folder_leads_to_the_readme(self, site):
        assert "url=README.html" in (site / "index.html").read_text()
        front = parsed(site / "README.html")
        assert front.h1.find(string=True) == "Equipoise"
        assert front.find("img", src=lambda source: "report.png" in source)
        assert (site / "_images" / "report.png").is_file()

    def test_every_page_is_in_the_navigation(self, site):
        links = parsed(site / "README.html").find(class_="sidebar-tree").find_all("a")
        shown = {link["href"] for link in links}
        pages = {f"docs/{page.stem}.html" for page in DOCS.glob("*.md")}
        assert not (pages | {"CONTRIBUTING.html"}) - shown
