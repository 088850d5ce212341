"""The older protocol of SQS clients: a form in, XML out.

    Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=30     a map
    SendMessageBatchRequestEntry.1.Id=a                         a list of structures
    AttributeName.1=All                                         a list of texts

The form becomes the same fields as the JSON protocol's, so that one door serves both.
"""

from __future__ import annotations

from typing import Any, Final

# Lists and maps are counted under names of their own; what they are called in JSON.
_LISTS: Final = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "TagKey": "TagKeys",
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
}
# (name in JSON, key of an entry, value of an entry)
_MAPS: Final = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
# Far beyond any legal request: a form must not make us build a tree without end.
DEPTH_MAX: Final = 8
_ENVELOPE: Final = frozenset({"Action", "Version", "Expires", "Timestamp"})

Tree = dict[str, Any]


class MalformedQueryError(Exception):
    """A name of the form contradicts another one, or is nested without end."""


def fields_of(form: dict[str, str], action: str) -> Tree:
    """The fields of one action, named as in JSON. Values are texts."""
    tree: Tree = {}
    for name, value in form.items():
        if name not in _ENVELOPE:
            _plant(tree, name, value)
    fields = _rename(tree)
    if action == "CreateQueue" and "Tags" in fields:
        # AWS's own irregularity, the same in its JSON.
        fields["tags"] = fields.pop("Tags")
    return fields


def _plant(tree: Tree, name: str, value: str) -> None:
    path = name.split(".")
    if len(path) > DEPTH_MAX:
        raise MalformedQueryError(f"{name[:80]} is nested too deeply")
    for step in path[:-1]:
        below = tree.setdefault(step, {})
        if not isinstance(below, dict):
            raise MalformedQueryError(f"{name[:80]} contradicts another parameter")
        tree = below
    if isinstance(tree.get(path[-1]), dict):
        raise MalformedQueryError(f"{name[:80]} contradicts another parameter")
    tree[path[-1]] = value


def _rename(tree: Tree) -> Tree:
    fields: Tree = {}
    for name, below in tree.items():
        if name in _LISTS and isinstance(below, dict):
            fields[_LISTS[name]] = [_inner(item) for item in _counted(below)]
        elif name in _MAPS and isinstance(below, dict):
            known, key, value = _MAPS[name]
            fields[known] = {str(item.get(key, "")): _inner(item.get(value, "")) for item in _entries(below)}
        else:
            fields[name] = below
    return fields


def _inner(item: object) -> object:
    return _rename(item) if isinstance(item, dict) else item


def _counted(numbered: Tree) -> list[Any]:
    """In the order of the numbers, whatever the order of the form."""
    try:
        return [numbered[number] for number in sorted(numbered, key=int)]
    except ValueError:
        raise MalformedQueryError(f"{next(iter(numbered))[:80]} is no number of a list") from None


def _entries(numbered: Tree) -> list[Tree]:
    return [item for item in _counted(numbered) if isinstance(item, dict)]
