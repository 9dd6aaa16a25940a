"""Each loss on populations with known truth, and under sampling biases that no loss here can correct.

Stage: `ToyConfig` → runs → a folder of tables and figures. `population` needs no torch.
"""
