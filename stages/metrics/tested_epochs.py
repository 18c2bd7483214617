"""The file of a fit's test scores by epoch, shared by the stages that write and read it.

They choose nothing: FREEZE!'s notebooks keep the epoch with the best score on test, and this shows what that
would have given beside the epoch that dev chose.
"""

import pyarrow as pa

TEST_BY_EPOCH = "test_by_epoch.parquet"
TESTED_EPOCHS = pa.schema([pa.field("epoch", pa.int64()), pa.field("test", pa.float64())])
"""Its columns, one row per evaluated epoch."""
