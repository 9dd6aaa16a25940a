"""The large comparisons: data sets × methods → one Parquet file → one page. Begin at engine.py; `python -m evidence` lists them."""
