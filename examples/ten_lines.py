"""Adapt a timm model in ten lines.

python examples/ten_lines.py
python examples/ten_lines.py --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --images FIELD --source CLEAN
"""

import common

import navia

setup = common.load(common.arguments(__doc__).parse_args())

vit = setup.vit  # navia.load("timm:vit_base_patch16_224"), or navia.load(your_timm_module)
source = navia.SourceStatistics.measure(vit, setup.source, reduce="tome:8", limit=64)
adapter = navia.adapt(vit, method="navia", reduce="tome:8", source=source, classes=setup.opened.classes)
correct = base = seen = 0
for batch in setup.stream():  # images are preprocessed by vit.preprocessing
    logits = adapter(batch.images)  # predicts, then adapts
    correct += int((logits.argmax(1) == batch.labels).sum())
    base += int((vit(batch.images, classes=setup.opened.classes).argmax(1) == batch.labels).sum())
    seen += int((batch.labels >= 0).sum())
    print(f"step {adapter.steps:3}  entropy {adapter.last.entropy:.3f}  correct {correct} of {seen}  (source model {base})")
