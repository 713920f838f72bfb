#include "rabit/kill_points.h"

namespace rabit::layer {

const bool kServesKillPoints = true;

}  // namespace rabit::layer
