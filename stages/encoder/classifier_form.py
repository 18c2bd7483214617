"""Exported classifiers: what an exported folder has beside a backbone and a pooling.

In the plain form the classifier of single texts is the last module of sentence-transformers, so that its
`encode` gives logits. That of pairs reads two vectors side by side, which no module does: it lies in the
folder `classifier`, in the files of a `Dense`. Names of classes are where transformers keeps them, in the
backbone's config. Permafrost reads such a folder by the record and the head beside them. Any other head,
and a linear classifier of pairs, is exported in the module form, which has all of this already.
"""

from pathlib import Path

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.encoder.answers import classes_known
from permafrost.stages.encoder.digests import digests_of
from permafrost.stages.encoder.load import FittedHead
from permafrost.stages.encoder.module_form import (
    HEAD,
    RECORD,
    ModuleRecord,
    reads_of,
    write_head,
)
from permafrost.stages.encoder.plain_form import write_dense
from permafrost.stages.encoder.vectors import HeadVectors, LatentVectors
from permafrost.stages.extraction.backbone import BackboneConfig, find_backbone
from permafrost.stages.extraction.files import CONFIG
from permafrost.stages.fit.models import PairClasses
from permafrost.storage.durable import json_bytes, read_json
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted
from permafrost.storage.sealed import sealed_bytes

CLASSIFIER = "classifier"
"""Folder of the layer that reads both vectors of a pair."""


def require_classifier(fitted: FittedHead) -> None:
    """Raises: InputError: the head has no classes."""
    task: TaskKind = "similarity"
    if not isinstance(fitted.vectors, LatentVectors):
        task, names = classes_known(fitted.vectors)
        if names:
            return
    raise InputError(
        f"{fitted.ref} was trained on a corpus of kind {quoted(task)}, so it has no classes; leave --as "
        "classifier out: of a folder of vectors, the cosine of two is what the head says of a pair"
    )


def write_classifier(fitted: FittedHead, folder: Path) -> None:
    """Complete a folder of the plain form to a classifier.

    Args:
        fitted: a head with classes.
        folder: as `write_plain` wrote it for a classifier.
    """
    vectors = fitted.vectors
    assert not isinstance(vectors, LatentVectors), "`require_classifier` checks this"
    names = dict(enumerate(classes_known(vectors)[1]))
    classes = {
        "id2label": {str(number): name for number, name in names.items()},
        "label2id": {name: number for number, name in names.items()},
    }
    (folder / CONFIG).write_bytes(json_bytes(read_json(folder / CONFIG) | classes))
    if isinstance(vectors, HeadVectors) and isinstance(vectors.head.model, PairClasses):
        write_dense(vectors.head.model.classifier.linear, folder / CLASSIFIER)
    write_head(fitted, folder / HEAD)
    # The backbone is another one: without the blocks that are not read, and with a tokenizer that cuts.
    files = find_backbone(BackboneConfig(source=str(folder)))
    digests = {
        "weights_digest": files.weights_digest,
        "tokenizer_digest": files.tokenizer_digest,
    }
    record = ModuleRecord(
        form="plain",
        artifact=str(fitted.ref),
        reads=reads_of(vectors),
        arrays=fitted.target.arrays,
        identity=fitted.target.identity.model_copy(update=digests),
        head_sha256=digests_of(folder / HEAD),
        code=dict(fitted.code) or None,
    )
    (folder / RECORD).write_bytes(sealed_bytes(record.fields()))
