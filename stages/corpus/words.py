"""The vocabulary of the dilution task: common words, each one piece in BERT's vocabulary."""

CONTEXTS = (
    ("the", "parcel", "holds"),
    ("our", "cabinet", "keeps"),
    ("this", "drawer", "contains"),
    ("that", "basket", "includes"),
    ("her", "suitcase", "carries"),
    ("his", "shelf", "offers"),
)
"""Openings of a statement; all of one length, so that statements are."""

NOUNS = (
    "maps", "letters", "coins", "photos", "tools", "books", "lamps", "shirts",
    "gloves", "bottles", "cards", "stamps", "cables", "ropes", "candles", "badges",
)  # fmt: skip
"""What is there, or is not."""

MODIFIERS = ("not", "never", "without", "except", "lacking", "minus")
"""Words that negate the noun after them."""

_FILLERS = """
river stone green music garden winter summer window table paper simple narrow quiet strong
gentle yellow silver bridge market village mountain forest island harbor valley meadow field
road street corner station travel morning evening night week month year hour minute season
autumn spring weather cloud rain snow wind sun moon star sky earth water fire light shadow color
sound voice song dance story poem novel chapter page line word letter number figure circle
square point center edge side front back upper lower middle inner outer open closed full half
double single common public private local national foreign modern ancient young old new recent
former final first second third next last large small long short high low deep wide heavy soft
hard warm cold dry wet clean bright dark sweet fresh plain rich poor fast slow early late ready
able walk run jump climb swim drive ride sail fly turn move bring send meet speak listen watch
read write learn teach build paint draw cut join grow plant cook clear wash sleep rest play work
begin finish follow lead farmer teacher doctor driver painter singer sailor baker soldier
student child friend neighbor captain house school church office factory museum theater library
hospital castle tower gate wall roof floor door horse bird fish cow sheep goat dog cat bear wolf
tree leaf flower grass seed fruit apple bread milk cheese often always soon again almost perhaps
together nearly rather quite under over between behind beyond near across along around toward
during before after while because although where when there here then now
"""
FILLERS = tuple(_FILLERS.split())
"""Words that say nothing about the label."""
