"""The tables of docs/json.md, and whether an answer has their keys and types."""

import re

from tests.documents import ROOT

PAGE = ROOT / "docs" / "json.md"
RUNS = "retable runs --json"
KINDS = {dict: "object", list: "array", str: "text", bool: "boolean", int: "integer", float: "number"}
ROW = re.compile(r"^\| `(?P<key>[^`]+)` \| (?P<type>[^|]+) \| [^|]+ \|$", re.MULTILINE)


def node():
    return {"types": set(), "optional": False, "keys": {}}


def sections():
    """Return command -> its schema as a tree: of each key its types, whether it is optional, and the keys below it."""
    found = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        root = node()
        for row in ROW.finditer(part):
            at = root
            for word in row["key"].replace("[]", ".[]").strip(".").split("."):
                at = at["keys"].setdefault(word, node())
            types, _, optional = row["type"].partition(", ")
            at["types"], at["optional"] = set(types.split(" or ")), bool(optional)
            assert at["types"] <= {*KINDS.values(), "null", "run"} and optional in ("", "optional"), row[0]
            if "run" in at["types"]:
                at["types"] = {"object"}
                at["keys"] |= found[RUNS]["keys"]["[]"]["keys"]
        found[re.match(r"`(.+)`", part)[1]] = root
    return found


SECTIONS = sections()


def differences(value, schema, path="", seen=None):
    """Return where a value has other keys or types than a schema; note in `seen` the paths that it has."""
    seen = set() if seen is None else seen
    seen.add(path)
    kind, types, keys = KINDS.get(type(value), "null"), schema["types"], schema["keys"]
    if types and kind not in types and not (kind == "integer" and "number" in types):
        return [f"{path}: {kind}, documented {sorted(types)}"]
    if not keys or kind == "null":
        return []
    if "[]" in keys:
        if kind != "array":
            return [f"{path}: {kind}, documented an array"]
        below = [(each, keys["[]"], f"{path}[]") for each in value]
    elif kind != "object":
        return [f"{path}: {kind}, documented an object"]
    elif "*" in keys:
        below = [(each, keys["*"], f"{path}.*") for each in value.values()]
    else:
        needed = {key for key, of in keys.items() if not of["optional"]}
        if value.keys() - keys or needed - value.keys():
            return [f"{path}: undocumented {sorted(value.keys() - keys)}, missing {sorted(needed - value.keys())}"]
        below = [(each, keys[key], f"{path}.{key}") for key, each in value.items()]
    return [text for each, of, where in below for text in differences(each, of, where, seen)]


def paths(schema, path=""):
    """Return all paths of a schema."""
    found = {path}
    for key, of in schema["keys"].items():
        found |= paths(of, f"{path}[]" if key == "[]" else f"{path}.{key}")
    return found
