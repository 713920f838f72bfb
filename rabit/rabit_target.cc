// Holds nothing: the source of the targets `rabit`, `rabit_mock` and `rabit_mock_static` in a project that finds an
// installed Warren (warrenConfig.cmake).
