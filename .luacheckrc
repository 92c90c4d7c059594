-- "not (x <= y)" is how numbers that may be NaN are compared.
std = "lua54"
max_line_length = 140
ignore = { "581" }
