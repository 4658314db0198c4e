"""A transformers image-classification pipeline that adapts to its images.

    python examples/transformers_pipeline.py
    python examples/transformers_pipeline.py --model hf:google/vit-base-patch16-224 --images FIELD --source CLEAN

The pipeline is the usual one, with batch_size and top_k; its model is an adapter. timm and torchvision models work too.
"""

import common

import navia

TOP = 3
SHOWN = 5


def main() -> None:
    setup = common.load(common.arguments(__doc__).parse_args())
    adapter = setup.adapter("navia", "tome:8")
    classifier = navia.pipeline(adapter, batch_size=setup.batch_size, top_k=TOP)
    domain = setup.opened.domains[0]
    count = min(setup.limit, len(domain.images))
    correct = seen = 0
    for index, predictions in enumerate(classifier(setup.image(i) for i in range(count))):
        label = domain.label(index)
        if label >= 0:
            seen += 1
            correct += predictions[0]["label"] == setup.names[label]
        if index < SHOWN:
            text = ", ".join(f"{entry['label']} {entry['score']:.0%}" for entry in predictions)
            print(f"{domain.images.name(index)}: {text}")
    print(f"{count} images, {adapter.steps} steps" + (f", top-1 {correct / seen:.1%}" if seen else ""))


if __name__ == "__main__":
    main()
