"""Where the time of an adaptation step goes: torch's operators by their own time.

python benchmarks/profile_step.py deit_tiny_patch16_224 32 navia tome:8
python benchmarks/profile_step.py vit_base_patch16_224 8 align none --steps 5 --top 20
"""

import argparse
import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from torch.profiler import ProfilerActivity, profile

from navia.errors import NaviaError
from navia.evaluation.speed import Case, Setting, check_case, load, random_images, runner
from navia.models.device import keep_freed_memory


def main() -> None:
    keep_freed_memory()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="of timm; its weights are random")
    parser.add_argument("batch", type=int)
    parser.add_argument("method")
    parser.add_argument("reduce")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--top", type=int, default=12, help="operators to print")
    options = parser.parse_args()
    case = Case("step", options.method, options.reduce)
    try:
        check_case(case)
    except NaviaError as error:
        parser.error(str(error))
    vit = load(Setting(options.model, options.batch))
    images = random_images(vit, options.batch)
    step = runner(vit, case)
    step.warm_up(images)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(options.steps):
            step(images)
    found = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in found)
    print(f"{case}, {options.model}, batch {options.batch}: {total / 1e3 / options.steps:.0f} ms a step under the profiler")
    for event in found[: options.top]:
        share, calls = event.self_cpu_time_total / total, event.count / options.steps
        print(f"{100 * share:5.1f} %  {calls:6.0f} calls a step  {event.key}")
    rest = sum(event.self_cpu_time_total for event in found[options.top :])
    print(f"{100 * rest / total:5.1f} %  all others")


if __name__ == "__main__":
    main()
