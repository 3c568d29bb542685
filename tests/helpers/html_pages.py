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
    """Return everything that a browser would load. Assert that the page runs no code, and that its styles load nothing.

    `has_script`: scripts in the page are allowed. What a script loads by `src` is returned in either case.
    """
    sources = _Sources()
    sources.feed(page)
    assert not sources.tags & ({"link", "iframe", "object"} | (set() if has_script else {"script"}))
    assert "url(" not in page and "@import" not in page
    return sources.found
