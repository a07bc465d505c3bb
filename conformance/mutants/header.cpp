/* header.cpp: nothing but the header that all mutants begin with, compiled once (CMakeLists.txt). */
