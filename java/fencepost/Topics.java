package fencepost;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Collection;
import java.util.Map;

/**
 * What the brokers say about topics, in one call from Python instead of a dozen per topic.
 * By reflection: Kafka's client comes with the user's session, from a class loader that this class does not see.
 */
public final class Topics {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Topics() {}

  /** As JSON, by name: the id, and what the user may do; null from a broker without ACLs. */
  public static String describe(Object client, Collection<String> topics, Object options) throws Throwable {
    try {
      Method ask = client.getClass().getMethod("describeTopics", Collection.class, options.getClass());
      Object answer = call(ask.invoke(client, topics, options), "allTopicNames");
      ObjectNode told = JSON.createObjectNode();
      for (Map.Entry<?, ?> each : ((Map<?, ?>) call(answer, "get")).entrySet()) {
        ObjectNode topic = told.putObject((String) each.getKey());
        topic.put("id", call(each.getValue(), "topicId").toString());
        Object allowed = call(each.getValue(), "authorizedOperations");
        if (allowed == null) {
          topic.putNull("allowed");
        } else {
          ArrayNode names = topic.putArray("allowed");
          ((Collection<?>) allowed).forEach(one -> names.add(one.toString()));
        }
      }
      return JSON.writeValueAsString(told);
    } catch (InvocationTargetException e) {
      throw e.getCause();
    }
  }

  private static Object call(Object on, String method) throws ReflectiveOperationException {
    return on.getClass().getMethod(method).invoke(on);
  }
}
