"""Find out what a browser would load for a page."""

from html.parser import HTMLParser


class _Sources(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.tags = [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.found += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]


def loaded_by(page: str, *, has_script: bool = False) -> list[str]:
    """Return everything that a browser would load, and assert that nothing of it runs code or hides in a style.

    `has_script`: scripts within the page are allowed; what is loaded by `src` is returned in either case.
    """
    sources = _Sources()
    sources.feed(page)
    assert not sources.tags & ({"link", "iframe", "object"} | (set() if has_script else {"script"}))
    assert "url(" not in page and "@import" not in page
    return sources.found
