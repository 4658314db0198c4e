"""Findings about folders and files that lie where a run does not look for them, or should not."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from navia.data import corruptions, imagenet
from navia.data.doctor.diagnosis import Finding
from navia.data.doctor.listing import Listed, Place, image_paths, look
from navia.data.doctor.published import is_one_part
from navia.data.doctor.words import below_root, number, some
from navia.data.folder import SUFFIXES
from navia.data.layouts import Layout, has_images, layout_of, usable_below
from navia.io import printable

_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
_UNREAD_PICTURES = {".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".npy", ".dng"}


def nesting(layout: Layout, listed: Sequence[Listed]) -> Iterator[Finding]:
    """One level too deep or too shallow, though there are images where they were looked for."""
    root, here = layout.root, layout.root.resolve()
    if layout.kind == "flat" and imagenet.WNID.fullmatch(here.name):
        yield Finding("warning", f"this is one class folder by itself: use the folder above, {str(here.parent)!r}")
    elif layout.kind == "flat" and image_paths(listed[0].top)[0].name.startswith("ILSVRC2012_val"):
        yield Finding("warning", "the validation set as downloaded has no labels: sort its files into wnid folders")
    elif is_one_part(layout):
        yield Finding("note", f"one severity of one corruption; the data set is {str(here.parents[1])!r}")
    elif layout.kind == "imagenet-c" and here.name in corruptions.names(extra=True):
        yield Finding("note", f"one corruption of ImageNet-C; the data set is {str(here.parent)!r}")
    names = listed[0].class_names
    if layout.kind == "class folders" and all(name.lower() in _SPLITS for name in names):
        yield Finding("warning", f"{', '.join(names)} are no classes but splits: use {str(root / names[-1])!r}")
    for part in listed:
        if part.top.images and part.class_names:
            place = below_root(root, part.part.path)
            yield Finding(
                "error", f"{place} holds images both directly and in class folders ({part.class_names[0]}, ...): keep one"
            )
    yield from _too_deep(root, listed)


def _too_deep(root: Path, listed: Sequence[Listed]) -> Iterator[Finding]:
    deeper = [layout for part in listed for place in part.inside if (layout := _below_place(place))]
    if deeper:
        shown = some([f"{str(layout.root)!r} ({layout.kind})" for layout in deeper])
        yield Finding("warning", f"images in {number(len(deeper), 'folder')} lie too deep and are left out: {shown}")
    holders = [place for part in listed for place in part.inside if place.images]
    inner = [below_root(root, folder) for place in holders for folder in place.folders if has_images(folder)]
    if inner:
        yield Finding(
            "warning", f"images in {number(len(inner), 'folder')} inside class folders are left out: {some(inner)}"
        )


def strangers(layout: Layout, listed: Sequence[Listed]) -> Iterator[Finding]:
    above = [look(folder) for folder in _between(layout)]
    outside = [*_folders_outside(layout, listed), *_folders_beside_parts(layout, above)]
    if outside:
        shown = some([below_root(layout.root, folder) for folder in outside])
        yield Finding("warning", f"{number(len(outside), 'folder')} not part of the layout, ignored: {shown}")
    places = [*above, *(place for part in listed for place in (part.top, *part.inside))]
    shadows = sum(place.shadows for place in places)
    if shadows:
        yield Finding(
            "error", f"{number(shadows, 'file')} called ._* count as images but are macOS's attributes: delete them"
        )
    others = [place.path / name for place in places for name in place.others]
    pictures = [below_root(layout.root, path) for path in others if path.suffix.lower() in _UNREAD_PICTURES]
    if pictures:
        text = f"{number(len(pictures), 'picture')} of a kind that is not read, ignored: {some(pictures)}"
        yield Finding("warning", f"{text} (read are {', '.join(sorted(SUFFIXES))})")
    links = [below_root(layout.root, path) for path in others if path.suffix.lower() in SUFFIXES]
    if links:
        yield Finding("warning", f"{number(len(links), 'image')} behind links that lead nowhere, ignored: {some(links)}")
    yield from _names_not_utf8(layout.root, places)
    rest = [below_root(layout.root, path) for path in others if path.suffix.lower() not in _UNREAD_PICTURES | SUFFIXES]
    if rest:
        yield Finding("note", f"not images, ignored: {number(len(rest), 'file')}, {some(rest)}")


def _names_not_utf8(root: Path, places: Sequence[Place]) -> Iterator[Finding]:
    found = [below_root(root, place.path / name) for place in places for name in place.not_utf8]
    inside = (place.path for place in places if place.images and place.path != root)
    found += [f"{below_root(root, folder)}/" for folder in inside if printable(folder.name) != folder.name]
    if found:
        escaped = "a CSV file keeps their bytes, elsewhere such a byte is written as \\udcXX"
        yield Finding("note", f"{number(len(found), 'name')} that are not valid UTF-8: {some(found)} ({escaped})")


def _folders_outside(layout: Layout, listed: Sequence[Listed]) -> list[Path]:
    """Neither class folders, nor empty ones, nor such that hold images deeper (these are told elsewhere)."""
    expected = {place.path for part in listed for place in part.empty} if layout.kind != "flat" else set()
    bare = [place for part in listed for place in part.inside if not place.images and place.path not in expected]
    return [place.path for place in bare if _below_place(place) is None]


def _folders_beside_parts(layout: Layout, above: Sequence[Place]) -> list[Path]:
    expected = {part.path for part in layout.parts} | {place.path for place in above}
    return [folder for place in above for folder in place.folders if folder not in expected]


def _between(layout: Layout) -> list[Path]:
    """The folders of ImageNet-C from the root down to above its parts; of other layouts none."""
    found: set[Path] = set()
    for part in layout.parts:
        folder = part.path
        while folder != layout.root:
            folder = folder.parent
            found.add(folder)
    return sorted(found)


def _below_place(place: Place) -> Layout | None:
    """What a folder holds that has no images itself but folders."""
    if place.images or not place.folders:
        return None
    return layout_of(place.path) or next(iter(usable_below(place.path)), None)
