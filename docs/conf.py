"""The documentation's site: `uv run --group docs sphinx-build -W -c docs . site`.

Pages are the repository's Markdown as it is. The reference is written by `docs/reference.py` into
`docs/generated`.
"""

import logging
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from reference import reference_pages  # noqa: E402  beside this file

GENERATED = ROOT / "docs" / "generated"
#: The report of a run of this code, which CONTRIBUTING says how to make: a stored one would age.
EXAMPLE = GENERATED / "fairness" / "example" / "report.html"
#: Caption -> pages; one that is not there is left out, one that is not named comes last.
NAVIGATION = {
    "Start": ["docs/start", "docs/report", "docs/glossary", "docs/own-data", "docs/own-task"],
    "Tasks": [
        "Fairness <docs/fairness>",
        "PubMedQA <docs/pubmedqa>",
        "Dharma <docs/dharma>",
        "Retrieval <docs/rag>",
    ],
    "Guides": [
        "Evaluate and compare <docs/evaluate>",
        "Gate <docs/gate>",
        "Judges and endpoints <docs/judges>",
        "docs/checkpoints",
        "docs/elsewhere",
        "docs/troubleshooting",
    ],
    "Clusters": ["docs/nemo-rl", "docs/cluster"],
    "Reference": [
        "docs/configuration",
        "docs/generated/keys",
        "docs/generated/commands",
        "docs/run-directory",
    ],
    "Results": ["docs/results", "docs/methods"],
    "Project": ["CONTRIBUTING", "CHANGELOG", "SECURITY", "THIRD_PARTY"],
}
project = "Equipoise"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "docs/*.md", "docs/generated/*.md"]
include_patterns += [f"{page}.md" for page in NAVIGATION["Project"]]
exclude_patterns = [".*", "site", "results", "wandb", "tests", "docs/experiments"]

html_theme = "furo"
html_title = project
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = [str(EXAMPLE)] if EXAMPLE.exists() else []
html_copy_source = False
html_show_copyright = False
html_use_index = False

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 6


def write_generated(_: Sphinx) -> None:
    """Write the generated pages; leave unchanged ones alone."""
    logging.getLogger().setLevel(logging.WARNING)  # a style of furo's has all of INFO printed
    GENERATED.mkdir(exist_ok=True)
    for name, text in reference_pages().items():
        path = GENERATED / f"{name}.md"
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def adapt_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Give a page what GitHub has and a site has not."""
    folder = Path(app.srcdir, page).parent

    def without_folder(link: re.Match[str]) -> str:
        return link[1] if (folder / link[2]).is_dir() else link[0]

    text = re.sub(r"\[([^\[\]]*)\]\(([^()#:\s]+)\)", without_folder, source[0])
    text = re.sub(r'<a id="([\w-]+)"></a>', r"[]{#\1}", text)  # a target that links are checked by
    if page == root_doc:
        link = '\n<a href="report.html">The whole report of a short run</a>\n' * EXAMPLE.exists()
        text = text.replace("\n## ", f"{link}\n## ", 1) + navigation()
    source[0] = text


def navigation() -> str:
    """Return the trees of pages, which the front page has at its end."""
    names = [re.sub(r".*<|>", "", page) for pages in NAVIGATION.values() for page in pages]
    others = sorted(f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md"))
    trees = NAVIGATION | {"More": [page for page in others if page not in names]}
    return "".join(
        "\n\n```{toctree}\n:hidden:\n:caption: " + f"{caption}\n\n" + "\n".join(there) + "\n```\n"
        for caption, pages in trees.items()
        if (there := [p for p in pages if (ROOT / f"{re.sub('.*<|>', '', p)}.md").exists()])
    )


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Let the folder itself lead to the front page."""
    if error is None:
        refresh = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
        page = f"<!doctype html><title>{project}</title>{refresh}"
        (app.outdir / "index.html").write_text(page, "utf-8")


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("builder-inited", write_generated)
    app.connect("source-read", adapt_page)
    app.connect("build-finished", write_index)
