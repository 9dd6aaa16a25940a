def summary(folder): return ""
