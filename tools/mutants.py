"""Would the tests notice? Changes one line of the adaptation or the reduction at a time, and runs their tests on it.

    python tools/mutants.py                 all mutants, half an hour or more
    python tools/mutants.py --only sar      those whose file or line holds this text
    python tools/mutants.py --list

A mutant that no test kills is printed with its line; the exit code is the number of survivors. Each is a mistake that somebody could
make: a sign, a factor, a missing term, a bound that is off by one, a forgotten state.
"""

# ruff: noqa: E501 (a mutant is easier to read on one line)

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "reduce": ["tests/reduce", "tests/vit/test_parity.py", "tests/vit/test_forward.py", "tests/vit/test_shortcuts.py"],
    "adapt": ["tests/adapt/test_golden.py", "tests/adapt/test_life.py", "tests/adapt/test_contract.py"],
    "vit": ["tests/vit/test_shortcuts.py", "tests/vit/test_forward.py", "tests/vit/test_parity.py"],
}


class Mutant(NamedTuple):
    file: str  # below src/navia
    old: str
    new: str


MUTANTS = [
    # ---- reduce
    Mutant("reduce/matching.py", "r = pairs(count - prefix, r)", "r = pairs(count - prefix, r) - 1"),
    Mutant("reduce/matching.py", "metric = F.normalize(keys, dim=-1)", "metric = keys"),
    Mutant("reduce/matching.py", "best.topk(r, dim=1).indices", "best.topk(r, dim=1, largest=False).indices"),
    Mutant("reduce/matching.py", "prefix + prefix % 2, prefix + 1 - prefix % 2", "prefix + 1 - prefix % 2, prefix + prefix % 2"),
    Mutant("reduce/matching.py", "descending=True, stable=True", "descending=True, stable=False"),
    Mutant("reduce/matching.py", "into = prefix + a_count - r +", "into = prefix + a_count - r - 1 +"),
    Mutant("reduce/tome.py", "joining / total", "joining / (total + 1)"),
    Mutant("reduce/tome.py", "before.gather(1, into) / total", "before.gather(1, into) * 0 + 0.5"),
    Mutant("reduce/tome.py", "return self.proportional", "return False"),
    Mutant("reduce/tome.py", "proportional: bool = True", "proportional: bool = False"),
    Mutant("reduce/tofu.py", "norms.gather(1, matching.removed), \"amax\"", "norms.gather(1, matching.removed), \"mean\""),
    Mutant("reduce/tofu.py", "layer >= (depth // 2", "layer > (depth // 2"),
    Mutant("reduce/tofu.py", "return self.compat", "return False"),
    Mutant("reduce/tofu.py", ".scatter_(1, matching.into, True)", ".scatter_(1, matching.into, False)"),
    Mutant("reduce/evit.py", "descending=True, stable=True) + prefix", "stable=True) + prefix"),
    Mutant("reduce/evit.py", "r = min(r, tokens.image_count - 1)", "r = min(r, tokens.image_count)"),
    Mutant("reduce/evit.py", "weight @ take(values, go)", "weight @ take(values, go).detach()"),
    Mutant("reduce/evit.py", "seen.cls_attention.gather(1, go)", "seen.cls_attention.detach().gather(1, go)"),
    Mutant("reduce/rows.py", "(arriving * rest.unsqueeze(-1))", "arriving"),
    Mutant("reduce/rows.py", "(arriving * share.unsqueeze(-1))", "arriving"),
    Mutant("reduce/rows.py", "out = grad.new_zeros(batch * ctx.rows, dim)", "out = grad.new_ones(batch * ctx.rows, dim)"),
    Mutant("reduce/schedule.py", "last = 2 * r[0] - first", "last = r[0]"),
    Mutant("reduce/tokens.py", "gone = self.sources < 0", "gone = self.sources < -1"),
    Mutant("reduce/tokens.py", "weight = self.sizes[:, self.prefix :]", "weight = torch.ones_like(self.sizes)[:, self.prefix :]"),
    # ---- the forward
    Mutant("vit/first_row.py", "return grad, grad[:, 0].sum(dim=0)", "return grad, grad.sum(dim=(0, 1))"),
    Mutant("vit/first_row.py", "grad[:, 0] += of_row", "grad = grad.clone()"),
    Mutant("vit/attention.py", "sizes.log()", "sizes"),
    Mutant("vit/attention.py", "q.shape[-1] ** -0.5", "q.shape[-1] ** -1"),
    Mutant("vit/forward.py", "or reduce.touches_all_rows", ""),
    Mutant("vit/forward.py", 'touch.bias_position == "post_merge"', 'touch.bias_position == "block_input"'),
    # ---- adapt
    Mutant("adapt/losses.py", "return -(log_p.exp() * log_p).sum(dim=1)", "return (log_p.exp() * log_p).sum(dim=1)"),
    Mutant("adapt/losses.py", "F.mse_loss(std, source_std) +", "0.5 * F.mse_loss(std, source_std) +"),
    Mutant("adapt/losses.py", "-0.5 * (log_t.exp() * log_s)", "-1.0 * (log_t.exp() * log_s)"),
    Mutant("adapt/moments.py", "features.std(dim=0)", "features.std(dim=0, unbiased=False)"),
    Mutant("adapt/moments.py", "variance = world.total((rows - mean).square().sum(dim=0)) / (count - 1)",
           "variance = world.total((rows - mean).square().sum(dim=0)) / count"),
    Mutant("adapt/moments.py", "apart.square() * (self.count * count / total)", "apart.square() * (self.count / total)"),
    Mutant("adapt/shift.py", "0.9 * running + 0.1 * batch_mean", "0.1 * running + 0.9 * batch_mean"),
    Mutant("adapt/shift.py", "self.target - running", "running - self.target"),
    Mutant("adapt/method.py", "h < share * self.log_classes", "h <= 2 * share * self.log_classes"),
    Mutant("adapt/method.py", "self.optimizer.zero_grad(set_to_none=True)", "pass"),
    Mutant("adapt/method.py", '"generator": self.generator.get_state()', '"generator": torch.Generator().get_state()'),
    Mutant("adapt/method.py", "self.memory = copy.deepcopy(state[\"memory\"])", "self.memory = dict(self.memory)"),
    Mutant("adapt/methods/align.py", "weight: float = 30.0", "weight: float = 3.0"),
    Mutant("adapt/methods/align.py", "surprise + self.options.weight * distance", "self.options.weight * distance"),
    Mutant("adapt/methods/navia.py", "eta_delta_l: float = 5e-2", "eta_delta_l: float = 5e-3"),
    Mutant("adapt/methods/navia.py", "(self.embedding, o.eta_delta)", "(self.embedding, o.lr)"),
    Mutant("adapt/parameters.py", "return tuple(range(depth - count, depth))", "return tuple(range(depth - count - 1, depth - 1))"),
    Mutant("adapt/parameters.py", "return range(vit.depth * 3 // 4)", "return range(vit.depth)"),
    Mutant("adapt/parameters.py", "value = parameter.detach().clone() if own", "value = parameter.detach() if own"),
    Mutant("adapt/methods/sar.py", "self._put(before)", "pass"),
    Mutant("adapt/methods/sar.py", "0.9 * running + 0.1 * loss", "0.5 * running + 0.5 * loss"),
    Mutant("adapt/methods/sar.py", "kept = reliable & low", "kept = low"),
    Mutant("adapt/methods/eata.py", "< self.options.redundancy)", "> self.options.redundancy)"),
    Mutant("adapt/methods/eata.py", "- h[kept].detach())", "+ h[kept].detach())"),
    Mutant("adapt/methods/eata.py", "0.9 * running + 0.1 * mean", "mean"),
    Mutant("adapt/methods/eata.py", "+ self._anchor()", "- self._anchor()"),
    Mutant("adapt/methods/deyo.py", "+ torch.exp(drop)", ""),
    Mutant("adapt/methods/deyo.py", "kept = drop > o.plpd", "kept = drop < o.plpd"),
    Mutant("adapt/methods/cotta.py", "average: float = 0.999", "average: float = 0.99"),
    Mutant("adapt/methods/lame.py", "indices[:, 1:]", "indices[:, :-1]"),
    Mutant("adapt/methods/lame.py", "(w + w.T) / 2 if symmetric", "w if symmetric"),
    Mutant("adapt/methods/foa.py", "self.options.weight * count / 64", "self.options.weight"),
    Mutant("adapt/methods/foa.py", "if best is None or loss < min(losses):", "if best is None or loss > min(losses):"),
    Mutant("adapt/guard.py", "drift > self.options.drift", "drift > 100 * self.options.drift"),
    Mutant("adapt/guard.py", "if low or (", "if ("),
    Mutant("adapt/guard.py", "self.entropy > self.reference[0] and", "False and"),
    Mutant("adapt/guard.py", "and self._source_sees_more(method, histogram, images)", ""),
    Mutant("adapt/guard.py", "        method.load_state(now)\n", ""),
    Mutant("adapt/guard.py", "away > self.options.away", "False"),
    Mutant("adapt/guard.py", "len(self.troubles) >= self.options.patience", "False"),
]  # fmt: skip


FIRST = {  # tests that meet a file first, where they are not called like it
    "losses": "tent or align or cotta",
    "moments": "align or statistics or images",
    "shift": "shift or foa_bp",
    "method": "sar or reset or resume or state",
    "parameters": "sar or blocks or source",
    "rows": "gradient or backward",
}


def attempts(mutant: Mutant) -> list[list[str]]:
    """What to run, in turn: those tests that know the file by its name, then all of its folder."""
    folder, name = mutant.file.split("/")[0], Path(mutant.file).stem
    return [[*TESTS[folder], "-k", FIRST.get(name, name)], TESTS[folder]]


def killed(mutant: Mutant) -> bool:
    """Whether a test fails on a copy of the sources with this one change."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / "navia" / mutant.file
        text = file.read_text()
        if mutant.old not in text:
            raise SystemExit(f"{mutant.file} no longer holds {mutant.old!r}: change the mutant")
        file.write_text(text.replace(mutant.old, mutant.new, 1))
        return any(fails(tests, copy) for tests in attempts(mutant))


def fails(tests: list[str], sources: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    environment = os.environ | {"PYTHONPATH": str(sources)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    if done.returncode not in (0, 1, 2, 5):  # 5: no test has this name
        raise SystemExit(done.stdout.decode()[-2000:])
    return done.returncode in (1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose file or lines hold this text")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only in f"{m.file} {m.old} {m.new}"]
    survivors = []
    for number, mutant in enumerate(chosen, 1):
        line = f"{mutant.file}: {mutant.old!r} -> {mutant.new!r}"
        if options.list:
            print(line)
            continue
        start = time.monotonic()
        dead = killed(mutant)
        print(
            f"{number}/{len(chosen)} {'killed' if dead else 'SURVIVED'} {time.monotonic() - start:.0f} s  {line}", flush=True
        )
        if not dead:
            survivors.append(line)
    if not options.list:
        print(f"{len(chosen) - len(survivors)} of {len(chosen)} killed")
    sys.exit(len(survivors))


if __name__ == "__main__":
    main()
