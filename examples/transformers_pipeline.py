"""A transformers image-classification pipeline that adapts to what it is asked.

    python examples/transformers_pipeline.py
    python examples/transformers_pipeline.py --model hf:google/vit-base-patch16-224 --images FIELD --source CLEAN

The pipeline is the usual one, with its batch_size and top_k; only the model behind it is an adapter. It takes timm and
torchvision models as well.
"""

import setting

import navia

TOP = 3
SHOWN = 5


def main() -> None:
    here = setting.load(setting.arguments(__doc__).parse_args())
    adapter = here.adapter("navia", "tome:8")
    classifier = navia.pipeline(adapter, batch_size=here.batch, top_k=TOP)
    pictures = here.opened.domains[0]
    count = min(here.limit, len(pictures.images))
    right = seen = 0
    for place, answers in enumerate(classifier(here.picture(i) for i in range(count))):
        truth = pictures.label(place)
        if truth >= 0:
            seen += 1
            right += answers[0]["label"] == here.names[truth]
        if place < SHOWN:
            told = ", ".join(f"{answer['label']} {answer['score']:.0%}" for answer in answers)
            print(f"{pictures.images.name(place)}: {told}")
    print(f"{count} pictures, {adapter.steps} steps" + (f", top-1 {right / seen:.1%}" if seen else ""))


if __name__ == "__main__":
    main()
