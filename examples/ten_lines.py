"""Adapt a timm model in ten lines.

python examples/ten_lines.py
python examples/ten_lines.py --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --images FIELD --source CLEAN
"""

import setting

import navia

given = setting.arguments(__doc__).parse_args()
here = setting.load(given)

vit = here.vit  # navia.load("timm:vit_base_patch16_224"), or navia.load(your_timm_module)
source = navia.SourceStatistics.measure(vit, here.source, reduce="tome:8", limit=64)
adapter = navia.adapt(vit, method="navia", reduce="tome:8", source=source, classes=here.opened.classes)
right = frozen = seen = 0
for batch in here.stream():  # images that went through vit.preprocessing
    logits = adapter(batch.images)  # answers, then adapts
    right += int((logits.argmax(1) == batch.labels).sum())
    frozen += int((vit(batch.images, classes=here.opened.classes).argmax(1) == batch.labels).sum())
    seen += int((batch.labels >= 0).sum())
    print(f"step {adapter.steps:3}  entropy {adapter.last.entropy:.3f}  right {right} of {seen}  (frozen model: {frozen})")
