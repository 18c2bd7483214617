"""What loads the artifacts that nodes leave, by import path: a node names it, and whoever loads imports it.

Importing these takes seconds, and an experiment is planned without them.
"""

ADAPTED_BACKBONE = "permafrost.stages.finetune.adapted_backbone:adapted_files"
AUTOENCODERS = "permafrost.stages.freeze.pair_classifiers:load_pretrained"
CORPUS_VECTORS = "permafrost.stages.embed.corpus:CorpusVectors.load"
FINETUNED = "permafrost.stages.finetune.trained:load_finetuned"
PAIR_FIT = "permafrost.stages.freeze.pair_fit:load_pair_fit"
LATENT_HEAD = "permafrost.stages.encoder.load:load_latent_head"
LAYERS_SCORE = "permafrost.stages.freeze.corpus:score_corpus"
HEAD = "permafrost.stages.fit.trained:load_head"
TUNED_HEAD = "permafrost.stages.finetune.tuned_head_files:load_tuned_head"
TUNED_WEIGHTS = "permafrost.stages.finetune.adapted_backbone:load_tuned_weights"
