"""The large comparisons: data sets × methods → a Parquet file → a page. Begin at engine.py; `python -m evidence` lists them."""
