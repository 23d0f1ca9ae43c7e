"""The benchmark of the attention slice is that of the layers, GATConv among them."""

from bench.layers import main as main
