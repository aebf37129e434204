"""The commands of README and docs, as a reader would type them, and a folder in which they find their files."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tasks").glob("*.md")))
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "console")
PROGRAMS = ("retable", "make", "ray", "serve", "curl", "export", "pip", "aws", "helm", "docker", "kubectl", "sed")


@dataclass(frozen=True)
class Line:
    """A command of a page."""

    page: str
    text: str
    """Without its comment, on one line."""

    @property
    def words(self) -> list[str]:
        """The words, without variables that are set before them."""
        words = shlex.split(self.text)
        return words[next(place for place, word in enumerate(words) if not re.fullmatch(r"\w+=.*", word)) :]

    def __str__(self):
        return f"{self.page}: {self.text}"


def lines(page: Path) -> list[Line]:
    """Return the commands of a page, in its order: those lines of its blocks that begin with a program."""
    found = []
    for block in BLOCK.finditer(page.read_text()):
        if block["kind"] in SHELL:
            for text in re.sub(r"\\\n\s*", "", block["text"]).splitlines():
                text = re.sub(r"(^|\s+)#( .*)?$", "", text.removeprefix("$ ")).removesuffix(" &")
                command = re.sub(r"^(\w+=\S+ )+", "", text)
                if command.partition(" ")[0] in PROGRAMS:
                    found.append(Line(str(page.relative_to(ROOT)), text))
    return found


def python_blocks(page: str) -> list[str]:
    """Return the blocks of Python of a page."""
    text = (ROOT / page).read_text()
    return [block["text"] for block in BLOCK.finditer(text) if block["kind"] == "python"]


ALL = [line for page in PAGES for line in lines(page)]
