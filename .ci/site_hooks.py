"""Make one site of README.md, CONTRIBUTING.md, CHANGELOG.md and docs/: links between them work there as on a code host.

mkdocs knows only the files in docs/. So the other pages are added here, and every other file that a page links to is copied.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
REFERENCE = re.compile(r"<!-- reference: (.*?) -->", re.DOTALL)
LINK = re.compile(r"(?<=\]\()[^)\s#:]+(?=[)#])")  # the path of a link, not of one to another site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and the files that pages link to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for file in list(files.documentation_pages()):
        for link in LINK.findall(file.content_string):
            path = target(link, file.src_uri)
            if path.is_file() and not path.is_relative_to(ROOT / "docs") and str(path.relative_to(ROOT)) not in PAGES:
                files.append(File.generated(config, place_on_site(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page, with links that lead to places on the site and with the docstrings that it asks for."""

    def moved(link: re.Match[str]) -> str:
        path = target(link[0], page.file.src_uri)
        return place_on_site(path) if path.exists() else link[0]

    return REFERENCE.sub(docstrings, LINK.sub(moved, markdown))


def docstrings(names: re.Match[str]) -> str:
    """Return the lines that mkdocstrings replaces by docstrings. The match has the places of objects in the package."""
    return "\n\n".join(f"::: ps_cluster.{name}" for name in names[1].split())


def target(link: str, page: str) -> Path:
    """Return the file of the project that a link of a page leads to."""
    folder = ROOT if page in PAGES.values() else ROOT / "docs"
    return (folder / link).resolve()


def place_on_site(path: Path) -> str:
    """Return the place of a file of the project on the site."""
    if path.is_relative_to(ROOT / "docs"):
        return str(path.relative_to(ROOT / "docs"))
    name = str(path.relative_to(ROOT))
    return PAGES.get(name) or f"files/{name}"
