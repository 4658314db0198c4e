"""What is missing or odd, and what is good to know."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from navia.data import corruptions, imagenet
from navia.data.doctor.diagnosis import Finding
from navia.data.doctor.listing import Listed
from navia.data.doctor.misplaced import nesting, strangers
from navia.data.doctor.published import Published
from navia.data.doctor.reading import Seen, cropped_side
from navia.data.doctor.words import below_root, number, some
from navia.data.layouts import SEVERITIES, Layout, match_classes
from navia.errors import InputError

_NEARLY = 150  # so many of the 200 classes of ImageNet-R or -A, and none else, are an incomplete copy


def findings_of(
    layout: Layout,
    listed: Sequence[Listed],
    seen: Seen,
    published: Published | None,
    model_classes: int | None,
) -> tuple[Finding, ...]:
    """All of them, the gravest first."""
    findings = (
        *nesting(layout, listed),
        *(_corruptions(layout) if layout.kind == "imagenet-c" else ()),
        *_class_folders(layout, listed),
        *_counts(listed, published),
        *strangers(layout, listed),
        *_pictures(layout.root, seen, sum(part.images for part in listed)),
        *(_model(listed, model_classes) if model_classes is not None else ()),
    )
    return tuple(sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.severity)))


def _corruptions(layout: Layout) -> Iterator[Finding]:
    there: defaultdict[str, set[str]] = defaultdict(set)
    for part in layout.parts:
        corruption, severity = part.name.split("/")
        there[corruption].add(severity)
    missing = [name for name in corruptions.names() if name not in there]
    if missing:
        yield Finding("warning", f"{len(missing)} of 15 corruptions are missing: {', '.join(missing)}")
    extra = [name for name in corruptions.CORRUPTIONS["extra"] if name in there]
    if extra:
        yield Finding("note", f"{len(extra)} of the 4 extra corruptions: {', '.join(extra)}")
    everywhere = set().union(*there.values())
    if everywhere != set(SEVERITIES):
        yield Finding("note", f"severities {', '.join(sorted(everywhere))} only")
    for name, own in there.items():
        if own != everywhere:
            yield Finding("warning", f"{name} lacks severity {', '.join(sorted(everywhere - own))}")


def _class_folders(layout: Layout, listed: Sequence[Listed]) -> Iterator[Finding]:
    empty = [below_root(layout.root, place.path) for part in listed for place in part.empty]
    if empty and layout.kind != "flat":
        limits = layout.kind in ("imagenet-r", "imagenet-a")
        result = "; until they are filled, answers are not limited to the data set's 200 classes" if limits else ""
        yield Finding("warning", f"{number(len(empty), 'class folder')} without images: {some(empty)}{result}")
    known = imagenet.class_index()
    yield from _grouped([(part, _missing_folders(layout, part)) for part in listed])
    names = listed[0].class_names
    strange = [name for name in names if name not in known]
    if layout.kind == "class folders" and len(strange) < len(names):
        text = (
            f"{len(names) - len(strange)} of {len(names)} class folders are ImageNet's, the others are not: {some(strange)}"
        )
        yield Finding("warning", f"{text}; move one kind away, or labels cannot be matched")
    elif layout.kind == "class folders" and names and all(imagenet.WNID.fullmatch(name) for name in names):
        yield Finding("note", "class folders are wnids, but none of ImageNet's 1000")
    elif layout.kind == "class folders" and names and all(name.isdecimal() for name in names):
        yield Finding(
            "note", f"class folders are numbers ({some(sorted(names, key=int))}): taken as the model's class numbers"
        )
    if layout.kind == "imagenet":
        yield from _nearly([known[place.path.name] for place in listed[0].inside if place.path.name in known])


def _missing_folders(layout: Layout, part: Listed) -> Finding | None:
    """Of ImageNet's 1000; empty ones are told elsewhere."""
    if layout.kind == "imagenet-v2":
        there = sum(place.path.name.isdecimal() for place in part.inside)
    else:
        there = sum(place.path.name in imagenet.class_index() for place in part.inside)
    if layout.kind in ("imagenet-r", "imagenet-a", "class folders", "flat") or there in (0, 1000):
        return None
    return Finding("warning", f"{number(1000 - there, 'class folder')} of 1,000 missing")


def _nearly(classes: Sequence[int]) -> Iterator[Finding]:
    for title, whole in (("ImageNet-R", imagenet.r_classes()), ("ImageNet-A", imagenet.a_classes())):
        missing = sorted(set(whole) - set(classes))
        if missing and set(classes) < set(whole) and len(classes) >= _NEARLY:
            shown = some([imagenet.wnids()[label] for label in missing])
            yield Finding(
                "warning",
                f"all are classes of {title}, but {len(missing)} of its 200 are missing ({shown}): it is taken for a subset "
                "of ImageNet and answers are not limited to the 200 classes",
            )


def _counts(listed: Sequence[Listed], published: Published | None) -> Iterator[Finding]:
    if published is not None:
        yield from _grouped([(part, _against(part, published)) for part in listed])
    numbers = Counter(part.images for part in listed)
    if len(numbers) > 1:
        usual = numbers.most_common(1)[0][0]
        other = [f"{part.part.name} ({part.images:,})" for part in listed if part.images != usual]
        yield Finding("warning", f"parts differ: most hold {number(usual, 'image')}, but {some(other)}")


def _against(part: Listed, published: Published) -> Finding | None:
    if part.images == published.images:
        return Finding("note", f"complete: {part.images:,} images, as published")
    if part.images > published.images:
        return Finding("warning", f"{part.images:,} images are more than the published {published.images:,}")
    each = {place.images for place in part.holders}
    if len(each) == 1 and part.class_names:
        whole = f" of {published.per_class}" if published.per_class else ""
        return Finding("note", f"a subset: {part.images:,} of {published.images:,} images, {each.pop()}{whole} per class")
    return Finding("warning", f"{part.images:,} of the published {published.images:,} images: a subset, or not all arrived")


def _pictures(root: Path, seen: Seen, total: int) -> Iterator[Finding]:
    of = f"of {seen.count:,} examined"
    if seen.broken:
        shown = some([f"{below_root(root, path)} ({reason})" for path, reason in seen.broken])
        yield Finding("error", f"{number(len(seen.broken), 'image')} {of} cannot be read: {shown}")
    if seen.small:
        shown = some([below_root(root, path) for path in seen.small])
        limit = corruptions.SMALLEST_SIDE
        yield Finding("warning", f"{number(len(seen.small), 'image')} {of} below {limit} px on a side: {shown}")
    groups = seen.duplicates()
    if groups:
        shown = some([" = ".join(below_root(root, path) for path in group[:3]) for group in groups])
        yield Finding("warning", f"{number(len(groups), 'group')} of identical files among {seen.count:,} examined: {shown}")
    for trait, text in (
        ("grey", "greyscale"),
        ("cmyk", "CMYK, converted to RGB"),
        ("frames", "with several frames, the first is used"),
        ("deep", "with more than 8 bits, cut to 8 bits"),
    ):
        if seen.traits[trait]:
            severity: Literal["note", "warning"] = "warning" if trait == "deep" else "note"
            yield Finding(severity, f"{number(seen.traits[trait], 'image')} {of} {text}")
    side = cropped_side(seen)
    if side:
        yield Finding("note", f"all examined images are {side}x{side} px, cropped for a model of that size: use --crop-only")
    if seen.count < total:
        yield Finding("note", f"{seen.count:,} of {total:,} images were decoded: --all decodes every one")


def _model(listed: Sequence[Listed], model_classes: int) -> Iterator[Finding]:
    if not any(part.class_names for part in listed):
        yield Finding("note", "no class folders: answers can be given, but not scored")
        return
    model_names = imagenet.names() if model_classes == len(imagenet.names()) else None
    for names in sorted({part.class_names for part in listed if part.class_names}):
        try:
            mask = match_classes(names, model_classes, model_names).mask
        except InputError as refusal:
            yield Finding("error", str(refusal))
        else:
            limited = f", answers limited to {len(mask)} classes" if mask else ""
            yield Finding(
                "note", f"{number(len(names), 'class folder')} match a model of {model_classes:,} classes{limited}"
            )


def _grouped(findings: Sequence[tuple[Listed, Finding | None]]) -> Iterator[Finding]:
    """What several parts have in common is said once."""
    groups: dict[Finding, list[str]] = defaultdict(list)
    for part, finding in findings:
        if finding is not None:
            groups[finding].append(part.part.name)
    for finding, names in groups.items():
        if len(findings) == 1:
            yield finding
        else:
            who = f"each of {len(names)} parts" if len(names) == len(findings) else some(names)
            yield Finding(finding.severity, f"{who}: {finding.text}")
