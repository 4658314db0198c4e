"""Super-classes against the names of the classes."""

from itertools import pairwise

from navia.data import imagenet


def test_super_classes_hold_the_classes_of_their_kind() -> None:
    kinds, names = list(imagenet.SUPER_CLASSES), imagenet.names()
    for kind, members in {
        "fish": ("tench", "stingray", "barracouta", "puffer"),
        "birds": ("cock", "great grey owl", "black grouse", "black swan", "white stork", "albatross"),
        "amphibians and reptiles": ("European fire salamander", "sidewinder"),
        "invertebrates": ("trilobite", "centipede", "jellyfish", "isopod", "tiger beetle", "sea cucumber"),
        "dogs": ("Chihuahua", "Mexican hairless"),
        "other mammals": (
            "tusker",
            "wombat",
            "grey whale",
            "sea lion",
            "timber wolf",
            "meerkat",
            "wood rabbit",
            "giant panda",
        ),
        "objects": ("abacus", "menu"),
        "food": ("plate", "pomegranate", "carbonara", "eggnog"),
        "landscapes": ("alp", "volcano"),
        "plants and fungi": ("rapeseed", "bolete"),
    }.items():
        assert {kinds[imagenet.super_classes()[names.index(name)]] for name in members} == {kind}
    left_out = [name for name, kind in zip(names, imagenet.super_classes(), strict=True) if kind < 0]
    assert left_out == ["hay", "ballplayer", "groom", "scuba diver", "ear", "toilet tissue"]


def test_ranges_do_not_overlap() -> None:
    ranges = sorted(found for ranges in imagenet.SUPER_CLASSES.values() for found in ranges)
    assert all(first <= last for first, last in ranges)
    assert all(last < first for (_, last), (first, _) in pairwise(ranges))
