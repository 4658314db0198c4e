"""Peak memory of a whole process that makes one adaptation step, and the seconds of that step.

python benchmarks/memory.py vit_base_patch16_224 64 align none            once as it is
python benchmarks/memory.py vit_base_patch16_224 64 align none --lean     and once with blocks walked twice
"""

import argparse
import time

import navia
from navia.evaluation.latency import peak_resident_mib, random_images
from navia.methods.base import METHODS
from navia.models.device import keep_freed_memory


def main() -> None:
    keep_freed_memory()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="of timm; its weights are random")
    parser.add_argument("batch", type=int)
    parser.add_argument("method")
    parser.add_argument("reduce")
    parser.add_argument("--lean", action="store_true")
    options = parser.parse_args()
    vit = navia.load(f"timm:{options.model}", pretrained=False, grad_checkpointing=options.lean)
    images = random_images(vit, options.batch)
    fisher = METHODS.get(options.method).needs_fisher
    source = navia.SourceStatistics.measure(vit, images[:2], options.reduce, fisher=fisher)
    adapter = navia.adapt(vit, options.method, options.reduce, source)
    adapter(images[:8])  # what the first step alone needs, and kernels to choose
    start = time.perf_counter()
    adapter(images)
    seconds = time.perf_counter() - start
    print(f"peak of the process {peak_resident_mib() / 1024:.2f} GiB, {seconds:.1f} s a step of {options.batch} images")


if __name__ == "__main__":
    main()
